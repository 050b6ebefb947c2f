// SPDX-License-Identifier: MIT
//! The figures as Markdown.

use std::fmt::Write as _;

use super::row::{Figures, Row};

/// Joining, and after it the setup.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| ranks | | peers | join [s] | sent [B] max, mean | received [B] max, mean | \
         descriptors max, rank 0 | threads max | connections max | rank 0 while joining |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let (max, mean) = (row.joined.max, row.joined.mean);
        let begin = format!(
            "| {} | {} | {} | {:.2} |",
            row.world, row.ranks_are, row.degree, row.join
        );
        let sent = pair(max, mean, |figures| figures.sent);
        let received = pair(max, mean, |figures| figures.received);
        let joining = row.root_joining.map_or("-".into(), short);
        let root = (max, row.root_joined);
        line(
            &mut text,
            &begin,
            &sent,
            &received,
            root,
            &format!(" {joining} |"),
        );
    }
    text.push_str(
        "\n| ranks | | peers | setup [s] | sent [B] max, mean | received [B] max, mean | \
         descriptors max, rank 0 | threads max | connections max | exchange [s] | leave [s] | \
         private memory [MiB] max |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let begin = format!(
            "| {} | {} | {} | {:.2} |",
            row.world, row.ranks_are, row.degree, row.setup
        );
        let (now, before) = (row.set_up, row.joined);
        let sent = format!(
            "{:.0}, {:.0}",
            row.setup_sent(),
            now.mean.sent - before.mean.sent
        );
        let received = format!(
            "{:.0}, {:.0}",
            row.setup_received(),
            now.mean.received - before.mean.received
        );
        let seconds = |time: Option<f64>| time.map_or("-".into(), |time| format!("{time:.2}"));
        let memory = match now.max.private {
            0.0 => "-".into(),
            private => format!("{:.1}", private / 1024.0),
        };
        let rest = format!(
            " {} | {} | {memory} |",
            seconds(row.exchange),
            seconds(row.leave)
        );
        line(
            &mut text,
            &begin,
            &sent,
            &received,
            (now.max, row.root_set_up),
            &rest,
        );
    }
    text
}

fn pair(max: Figures, mean: Figures, of: fn(Figures) -> f64) -> String {
    format!("{:.0}, {:.0}", of(max), of(mean))
}

fn line(
    text: &mut String,
    begin: &str,
    sent: &str,
    received: &str,
    (max, root): (Figures, Figures),
    rest: &str,
) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{begin} {sent} | {received} | {}, {} | {} | {:.0} |{rest}",
        short(max.descriptors),
        short(root.descriptors),
        short(max.threads),
        max.connections
    );
}

/// Shares of a process are no whole numbers.
fn short(number: f64) -> String {
    if number.fract() == 0.0 {
        format!("{number:.0}")
    } else {
        format!("{number:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::claims::tests::rows;
    use super::*;

    #[test]
    fn each_world_has_a_row_in_both_tables() {
        let rows = rows(|_, _| ());
        let text = table(&rows);
        assert_eq!(text.matches("| 64 | processes | 4 |").count(), 2, "{text}");
        let columns = |line: &str| line.matches('|').count();
        for part in text.split("\n\n") {
            let mut lines = part.lines();
            let head = columns(lines.next().unwrap());
            assert!(lines.all(|line| columns(line) == head), "{part}");
        }
    }
}
