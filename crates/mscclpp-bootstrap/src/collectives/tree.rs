// SPDX-License-Identifier: MIT
//! The binomial tree over `0..size`, rooted at 0. Each node's parent is the node
//! without its lowest set bit; depth and fan-out are at most log2 of the size.

/// The parent of `node`, `None` for the root.
pub(crate) fn parent(node: usize) -> Option<usize> {
    (node != 0).then(|| node & (node - 1))
}

/// The children of `node` among `size` nodes, the one with the largest subtree
/// first.
pub(crate) fn children(node: usize, size: usize) -> impl Iterator<Item = usize> {
    let limit = if node == 0 {
        size.checked_ilog2().map_or(0, |bits| bits + 1)
    } else {
        node.trailing_zeros()
    };
    (0..limit)
        .rev()
        .map(move |bit| node | 1 << bit)
        .filter(move |child| *child < size && *child != node)
}

/// How many steps away from the root `node` is.
pub(crate) fn depth(node: usize) -> u32 {
    node.count_ones()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_one_parent_which_counts_it_as_a_child() {
        for size in 1..200 {
            let mut seen = vec![0; size];
            for node in 0..size {
                for child in children(node, size) {
                    assert_eq!(parent(child), Some(node));
                    seen[child] += 1;
                }
            }
            assert_eq!(seen[0], 0);
            assert!(seen[1..].iter().all(|n| *n == 1), "{size}");
        }
    }

    #[test]
    fn fan_out_and_depth_are_logarithmic() {
        for size in [1, 2, 3, 64, 100, 4096] {
            let log = usize::BITS - (size - 1_usize).leading_zeros();
            for node in 0..size {
                assert!(children(node, size).count() <= log as usize);
                assert!(depth(node) <= log);
            }
        }
    }
}
