// SPDX-License-Identifier: MIT
//! Which experts each token goes to: a random table that all ranks know, because they make it of the
//! same seed. A model's router would take its place.

/// Experts that a token goes to.
pub(crate) const CHOICES: usize = 2;

/// One token's way to one of its experts. Twin of the struct in kernel.cpp.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Route {
    /// Of its rank's tokens.
    pub(crate) token: u32,
    /// The place of the result, among those of its rank.
    pub(crate) result: u32,
}

/// The table.
pub(crate) struct Routing {
    /// Of each rank, token and choice: an expert, and the weight of what it says.
    choices: Vec<Vec<[(usize, u64); CHOICES]>>,
}

impl Routing {
    /// A table for so many ranks with so many tokens each, and so many experts in all.
    pub(crate) fn new(ranks: usize, tokens: usize, experts: usize) -> Self {
        let mut state = 2026u64;
        let mut random = |below: usize| {
            // An xorshift generator.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % below
        };
        let mut token = || {
            let first = random(experts);
            // Another one.
            let second = (first + 1 + random(experts - 1)) % experts;
            [first, second].map(|expert| (expert, 1 + random(8) as u64))
        };
        let choices = (0..ranks).map(|_| (0..tokens).map(|_| token()).collect());
        Self {
            choices: choices.collect(),
        }
    }

    /// The tokens of `rank` that go to `expert`, in order.
    pub(crate) fn routes(&self, rank: usize, expert: usize) -> Vec<Route> {
        let tokens = self.choices[rank].iter().enumerate();
        let all = tokens.flat_map(|(token, choices)| {
            (choices.iter().enumerate()).map(move |(choice, (expert, _))| (token, choice, *expert))
        });
        all.filter(|(_, _, chosen)| *chosen == expert)
            .map(|(token, choice, _)| Route {
                token: token as u32,
                result: (token * CHOICES + choice) as u32,
            })
            .collect()
    }

    /// The experts and weights of a token.
    pub(crate) fn choices(&self, rank: usize, token: usize) -> [(usize, u64); CHOICES] {
        self.choices[rank][token]
    }

    /// The weights of a rank's tokens, one for each token and choice.
    pub(crate) fn weights(&self, rank: usize) -> Vec<u64> {
        let choices = self.choices[rank].iter().flatten();
        choices.map(|(_, weight)| *weight).collect()
    }
}
