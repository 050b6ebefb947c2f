// SPDX-License-Identifier: MIT
//! Chance that all ranks share: what is drawn follows from the run's seed and from what it is for, so
//! that both ends of a channel know what goes over it without a word.

use fastrand::Rng;

/// Chance for one purpose.
pub(super) fn draw(seed: u64, purpose: &[u64]) -> Rng {
    let mixed = purpose.iter().fold(seed, |mixed, word| {
        let next = Rng::with_seed(mixed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).u64(..);
        next.rotate_left(17)
    });
    Rng::with_seed(mixed)
}

/// One call among those that go over a lane. Offsets and sizes are in bytes, within the lane's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Put(u64, u64),
    PutWithSignal(u64, u64),
    PutWithSignalAndFlush(u64, u64),
    Signal,
    Flush,
    Accumulate(i64),
}

/// What goes over a lane in one exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) steps: Vec<Step>,
    /// Bytes from the start of the slot, all of which are put.
    pub(super) bytes: u64,
    /// Signals; the last comes behind everything else.
    pub(super) signals: usize,
    /// What the accumulates add up to.
    pub(super) sum: u64,
}

impl Script {
    /// Up to `most` bytes.
    pub(super) fn draw(mut rng: Rng, most: u64, accumulate: bool) -> Self {
        let mut script = Self {
            steps: Vec::new(),
            bytes: 0,
            signals: 0,
            sum: 0,
        };
        // Few bytes as often as many.
        let largest = most >> rng.u32(0..10);
        for _ in 0..rng.u32(1..7) {
            let room = (most - script.bytes).min(largest);
            let size = 8 * rng
                .u64(1..=(room / 8).max(1))
                .min((most - script.bytes) / 8);
            if size > 0 {
                let at = script.bytes;
                script.bytes += size;
                script.add(match rng.u32(0..4) {
                    0 | 1 => Step::Put(at, size),
                    2 => Step::PutWithSignal(at, size),
                    _ => Step::PutWithSignalAndFlush(at, size),
                });
            }
            match rng.u32(0..6) {
                0 => script.add(Step::Signal),
                1 => script.add(Step::Flush),
                2 | 3 if accumulate => script.add(Step::Accumulate(rng.i64(..))),
                _ => {}
            }
        }
        script.add(Step::Signal);
        script
    }

    fn add(&mut self, step: Step) {
        match step {
            Step::PutWithSignal(..) | Step::PutWithSignalAndFlush(..) | Step::Signal => {
                self.signals += 1;
            }
            Step::Accumulate(operand) => self.sum = self.sum.wrapping_add(operand as u64),
            Step::Put(..) | Step::Flush => {}
        }
        self.steps.push(step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_draw_the_same_and_other_purposes_others() {
        let script = |seed, purpose: &[u64]| Script::draw(draw(seed, purpose), 1 << 16, true);
        assert_eq!(script(1, &[2, 3]), script(1, &[2, 3]));
        let others = [script(1, &[3, 2]), script(2, &[2, 3]), script(1, &[2])];
        assert!(others.iter().all(|other| *other != script(1, &[2, 3])));
    }

    #[test]
    fn a_script_covers_its_bytes_once_and_ends_with_a_signal() {
        for number in 0..2000 {
            let script = Script::draw(draw(7, &[number]), 4096, number % 2 == 0);
            let mut end = 0;
            let mut signals = 0;
            let mut sum = 0_u64;
            for step in &script.steps {
                match *step {
                    Step::Put(at, size)
                    | Step::PutWithSignal(at, size)
                    | Step::PutWithSignalAndFlush(at, size) => {
                        assert_eq!(at, end);
                        end += size;
                        signals += usize::from(!matches!(step, Step::Put(..)));
                    }
                    Step::Signal => signals += 1,
                    Step::Accumulate(operand) => sum = sum.wrapping_add(operand as u64),
                    Step::Flush => {}
                }
            }
            assert_eq!(
                (end, signals, sum),
                (script.bytes, script.signals, script.sum)
            );
            assert!(end <= 4096 && end > 0 && end.is_multiple_of(8));
            assert_eq!(script.steps.last(), Some(&Step::Signal));
        }
    }
}
