// SPDX-License-Identifier: MIT
//! What is told of a set of samples.

/// What is told of the distribution of some samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    /// The least.
    pub(super) min: f64,
    /// A tenth of the samples are at most this.
    pub(super) p10: f64,
    /// The middle.
    pub(super) median: f64,
    /// A tenth of the samples are at least this.
    pub(super) p90: f64,
}

impl Summary {
    /// Of samples in any order; none if there are none. Between two samples it is interpolated.
    pub(super) fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let (low, high) = (
                sorted[place.floor() as usize],
                sorted[place.ceil() as usize],
            );
            low + (high - low) * place.fract()
        };
        Some(Self {
            min: sorted[0],
            p10: at(0.1),
            median: at(0.5),
            p90: at(0.9),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eleven_samples_have_their_tenths_at_a_sample() {
        let samples: Vec<f64> = [7, 1, 9, 3, 5, 11, 2, 4, 8, 6, 10].map(f64::from).to_vec();
        let summary = Summary::of(&samples).unwrap();
        assert_eq!(
            summary,
            Summary {
                min: 1.0,
                p10: 2.0,
                median: 6.0,
                p90: 10.0
            }
        );
    }

    #[test]
    fn two_samples_are_interpolated_and_one_is_all_three() {
        let two = Summary::of(&[1.0, 2.0]).unwrap();
        assert!((two.median - 1.5).abs() < 1e-9 && (two.p10 - 1.1).abs() < 1e-9);
        assert_eq!(
            Summary::of(&[4.0]),
            Some(Summary {
                min: 4.0,
                p10: 4.0,
                median: 4.0,
                p90: 4.0
            })
        );
        assert_eq!(Summary::of(&[]), None);
    }
}
