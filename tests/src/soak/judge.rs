// SPDX-License-Identifier: MIT
//! Whether what a process holds grows.
//!
//! The first quarter of a run is warm-up and does not count. Of the rest, the median of the last third
//! may be above that of the middle third by a tolerance, and so may the rise of a straight line through
//! all of it, whose slope is the median of the slopes between any two samples: a few odd samples move
//! neither.

use super::sample::Sample;

/// Something that is sampled.
pub(super) struct Quantity {
    pub(super) name: &'static str,
    pub(super) of: fn(&Sample) -> f64,
    /// By how much it may grow.
    pub(super) tolerance: f64,
}

/// All that is sampled.
pub(super) const QUANTITIES: [Quantity; 5] = [
    Quantity {
        name: "resident memory [KiB]",
        of: |sample| sample.resident,
        // The allocator gives little back: how much it holds depends on what was held at once.
        tolerance: 4096.0,
    },
    Quantity {
        name: "heap in use [KiB]",
        of: |sample| sample.heap,
        // Buffers and tables grow to what was once needed. Caches of threads count, too:
        // `cargo xtask soak` turns them off.
        tolerance: 256.0,
    },
    Quantity {
        name: "descriptors",
        of: |sample| sample.descriptors,
        tolerance: 0.0,
    },
    Quantity {
        name: "threads",
        of: |sample| sample.threads,
        tolerance: 0.0,
    },
    Quantity {
        name: "objects of the NIC",
        of: |sample| sample.objects,
        tolerance: 0.0,
    },
];

/// Fewer samples after the warm-up tell nothing.
const FEWEST: usize = 6;
/// Slopes between more than so many samples take long.
const MOST: usize = 400;

/// What became of one quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trend {
    pub(super) min: f64,
    pub(super) max: f64,
    /// A minute.
    pub(super) slope: f64,
    /// From the median of the middle third to that of the last.
    pub(super) rise: f64,
    pub(super) flat: bool,
}

impl Quantity {
    /// What became of it after the warm-up; none if there are too few samples.
    pub(super) fn trend(&self, samples: &[Sample]) -> Option<Trend> {
        let end = samples.last()?.at;
        let points: Vec<(f64, f64)> = (samples.iter())
            .filter(|sample| sample.at >= end / 4.0)
            .map(|sample| (sample.at, (self.of)(sample)))
            .collect();
        if points.len() < FEWEST {
            return None;
        }
        let values = |points: &[(f64, f64)]| points.iter().map(|(_, value)| *value).collect();
        let third = points.len() / 3;
        let middle = median(values(&points[third..2 * third]));
        let last = median(values(&points[points.len() - third..]));
        let rise = last - middle;
        let slope = slope(&points);
        let span = points[points.len() - 1].0 - points[0].0;
        // The line may miss the samples by the rounding of sums.
        let flat = rise <= self.tolerance && slope * span <= self.tolerance + 1e-6;
        let all: Vec<f64> = values(&points);
        Some(Trend {
            min: all.iter().copied().fold(f64::INFINITY, f64::min),
            max: all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            slope: slope * 60.0,
            rise,
            flat,
        })
    }
}

/// The median of the slopes between any two points.
fn slope(points: &[(f64, f64)]) -> f64 {
    let every = points.len().div_ceil(MOST);
    let points: Vec<_> = points.iter().step_by(every).collect();
    let mut slopes = Vec::new();
    for (number, from) in points.iter().enumerate() {
        let later = points[number + 1..].iter().filter(|to| to.0 > from.0);
        slopes.extend(later.map(|to| (to.1 - from.1) / (to.0 - from.0)));
    }
    if slopes.is_empty() {
        0.0
    } else {
        median(slopes)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[half - 1], values[half]),
        _ => values[half],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten minutes, a sample every two seconds.
    fn recorded(change: impl Fn(usize, &mut Sample)) -> Vec<Sample> {
        let mut rng = fastrand::Rng::with_seed(11);
        (0..300)
            .map(|number| {
                let mut sample = Sample {
                    at: 2.0 * number as f64,
                    // A warm-up, and then noise.
                    resident: 30_000.0
                        + 9000.0 * (number.min(60) as f64 / 60.0)
                        + rng.f64() * 800.0,
                    heap: 3000.0 + rng.f64() * 100.0,
                    descriptors: 21.0,
                    threads: 8.0,
                    objects: 13.0,
                };
                change(number, &mut sample);
                sample
            })
            .collect()
    }

    fn growing(samples: &[Sample]) -> Vec<&'static str> {
        let grows = |of: &&Quantity| !of.trend(samples).expect("enough samples").flat;
        (QUANTITIES.iter().filter(grows))
            .map(|of| of.name)
            .collect()
    }

    #[test]
    fn a_warm_up_noise_and_odd_samples_are_no_growth() {
        assert_eq!(growing(&recorded(|_, _| ())), [""; 0]);
        let odd = recorded(|number, sample| {
            if number % 17 == 0 {
                sample.threads += 2.0;
                sample.descriptors += 5.0;
                sample.resident += 20_000.0;
            }
        });
        assert_eq!(growing(&odd), [""; 0]);
        let shrinks = recorded(|number, sample| sample.heap -= number as f64);
        assert_eq!(growing(&shrinks), [""; 0]);
    }

    #[test]
    fn a_planted_leak_of_each_quantity_is_found_by_its_name() {
        // A page every two seconds.
        let resident = recorded(|number, sample| sample.resident += 40.0 * number as f64);
        assert_eq!(growing(&resident), ["resident memory [KiB]"]);
        let heap = recorded(|number, sample| sample.heap += 3.0 * number as f64);
        assert_eq!(growing(&heap), ["heap in use [KiB]"]);
        // One in ten eras.
        let one_in_ten = |number| (number / 10) as f64;
        let descriptors = recorded(|number, sample| sample.descriptors += one_in_ten(number));
        assert_eq!(growing(&descriptors), ["descriptors"]);
        let threads = recorded(|number, sample| sample.threads += one_in_ten(number));
        assert_eq!(growing(&threads), ["threads"]);
        let objects = recorded(|number, sample| sample.objects += one_in_ten(number));
        assert_eq!(growing(&objects), ["objects of the NIC"]);
        // A single one, late.
        let once = recorded(|number, sample| sample.objects += f64::from(u8::from(number > 220)));
        assert_eq!(growing(&once), ["objects of the NIC"]);
    }

    #[test]
    fn too_few_samples_tell_nothing() {
        let few = &recorded(|_, _| ())[..5];
        assert_eq!(QUANTITIES[0].trend(few), None);
        assert_eq!(QUANTITIES[0].trend(&[]), None);
    }
}
