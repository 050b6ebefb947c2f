// SPDX-License-Identifier: MIT
//! Tables as text.

/// The lines, of which the first is the head, in columns as wide as need be. Those of `words` are
/// aligned to the left, the others, numbers, to the right.
pub(super) fn aligned(lines: &[Vec<String>], words: &[usize]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (i, line) in lines.iter().enumerate() {
        let cells = line
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                if words.contains(&column) {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
        if i == 0 {
            text += &"-".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1));
            text.push('\n');
        }
    }
    text
}

/// A figure with as many digits as tell something.
pub(super) fn number(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 || v <= 0.0 => format!("{v:.3}"),
        // Three digits, wherever they begin.
        v => format!("{v:.*}", (2.0 - v.log10().floor()).min(9.0) as usize),
    }
}
