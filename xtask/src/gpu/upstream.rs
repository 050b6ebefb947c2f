// SPDX-License-Identifier: MIT
//! MSCCL++'s own measurements, beside ours of the same run.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::parts::Parts;
use crate::mpi::Mpi;
use crate::report::{Point, Report};

/// Its multi-process tests, as a build leaves them.
const PROGRAMS: [&str; 4] = [
    "bin/mp_unit_tests",
    "test/mp_unit/mp_unit_tests",
    "test/mp_unit_tests",
    "mp_unit_tests",
];
/// Left out: what needs an HCA, which can hang without one, and what we have no counterpart of.
const LEFT_OUT: &str = "--filter=-Ib,Packet,MemoryChannel,Switch,Semaphore,Bulk,Executor";

/// One of its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// `Suite.Test`.
    pub test: String,
    /// What of it.
    pub label: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: String,
}

/// Reads its figures out of what it prints.
pub fn parse(text: &str) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut test = String::new();
    for line in text.lines() {
        let Some(rest) = line.trim_end().strip_prefix("[   PERF   ] ") else {
            continue;
        };
        let Some(rest) = rest.strip_prefix("  ") else {
            rest.clone_into(&mut test);
            continue;
        };
        let figure = (rest.trim_start().rsplit_once(": ")).and_then(|(label, figure)| {
            let (value, unit) = figure.split_once(' ')?;
            Some((label, value.parse().ok()?, unit))
        });
        if let Some((label, value, unit)) = figure {
            figures.push(Figure {
                test: test.clone(),
                label: label.to_owned(),
                value,
                unit: unit.to_owned(),
            });
        }
    }
    figures
}

/// Our point for the same: suite, backend, bytes and metric.
fn counterpart(figure: &Figure) -> Option<(&'static str, &'static str, u64, &'static str)> {
    match &*figure.test {
        "PortChannelOneToOneTest.PingPongPerf" => {
            Some(("ping-pong", "proxy-ipc", 4, "round trip with flush"))
        }
        "PortChannelOneToOneTest.PingPongPerfEthernet" => {
            Some(("ping-pong", "proxy-ethernet", 4, "round trip with flush"))
        }
        "PortChannelOneToOneTest.Bandwidth" => {
            let (number, unit) = figure.label.split_once(' ')?;
            let number: u64 = number.parse().ok()?;
            let bytes = match unit {
                "KB" => number << 10,
                "MB" => number << 20,
                _ => return None,
            };
            Some((
                "bidirectional",
                "proxy-ipc",
                bytes,
                "bandwidth of each direction",
            ))
        }
        _ => None,
    }
}

fn ours<'a>(report: &'a Report, figure: &Figure) -> Option<&'a Point> {
    let (suite, backend, bytes, metric) = counterpart(figure)?;
    report.points.iter().find(|point| {
        point.suite == suite
            && point.backend.as_deref() == Some(backend)
            && point.bytes == Some(bytes)
            && point.metric == metric
    })
}

/// Its figures beside ours.
pub fn table(figures: &[Figure], report: Option<&Report>) -> String {
    let mut text = String::from("MSCCL++'s tests of the same run\n");
    let _ = writeln!(
        text,
        "{:<45} {:<12} {:>10} {:>10} {:>7}  unit",
        "test", "what", "MSCCL++", "ours", "ratio"
    );
    for figure in figures {
        let Figure {
            test,
            label,
            value,
            unit,
        } = figure;
        let _ = match report.and_then(|report| ours(report, figure)) {
            Some(point) => {
                let ratio = point.median / value;
                writeln!(
                    text,
                    "{test:<45} {label:<12} {value:>10.4} {:>10.4} {ratio:>7.3}  {unit}",
                    point.median
                )
            }
            None => writeln!(
                text,
                "{test:<45} {label:<12} {value:>10.4} {:>10} {:>7}  {unit}",
                "-", "-"
            ),
        };
    }
    text
}

/// Runs the tests of a build by mpirun, and holds our report against them.
///
/// # Errors
///
/// When the build or mpirun is not there, or it prints no figure.
pub fn measure(
    parts: &Parts<'_>,
    build: &Path,
    report: Option<&Report>,
    tables: &mut String,
) -> Result<(bool, String)> {
    let program = program(build)?;
    let mpi = match Mpi::find(parts.interrupt) {
        Ok(mpi) => mpi,
        Err(why) => bail!("{why}"),
    };
    let rank: [OsString; 3] = [program.into(), "--only-perf-tests".into(), LEFT_OUT.into()];
    let as_root = rustix::process::geteuid().is_root();
    let mut command = Command::new(&mpi.program);
    command.args(mpi.arguments(2, as_root, &[], &rank));
    let libraries = [build.join("lib"), build.to_owned()];
    let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let paths = libraries.into_iter().chain(std::env::split_paths(&before));
    command.env("LD_LIBRARY_PATH", std::env::join_paths(paths)?);
    let mut log = parts.log("upstream")?;
    let mut text = String::new();
    let problem = parts.process(command, &mut |line| {
        text += line;
        text.push('\n');
        writeln!(log, "{line}")
    })?;
    let figures = parse(&text);
    *tables += &format!("\n{}", table(&figures, report));
    match problem {
        _ if figures.is_empty() => bail!("it prints no figure: see upstream.log"),
        Some(problem) => Ok((false, problem)),
        None => Ok((true, format!("{} figures", figures.len()))),
    }
}

fn program(build: &Path) -> Result<PathBuf> {
    let mut places = PROGRAMS.iter().map(|place| build.join(place));
    places.find(|place| place.is_file()).with_context(|| {
        format!(
            "no mp_unit_tests in {}: it is to be a build directory of MSCCL++",
            build.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    const TEXT: &str = "\
[       OK ] PortChannelOneToOneTest.Bandwidth
[   PERF   ] Performance results:
[   PERF   ] PortChannelOneToOneTest.PingPongPerf
[   PERF   ]        latency: 48.02 us/iter
[   PERF   ] PortChannelOneToOneTest.Bandwidth
[   PERF   ]           1 KB: 0.001568 GB/s
[   PERF   ]         128 MB: 75.4 GB/s
";

    #[test]
    fn its_figures_are_read() {
        let figures = parse(TEXT);
        let brief: Vec<_> = figures
            .iter()
            .map(|f| (&*f.label, f.value, &*f.unit))
            .collect();
        assert_eq!(
            brief,
            [
                ("latency", 48.02, "us/iter"),
                ("1 KB", 0.001568, "GB/s"),
                ("128 MB", 75.4, "GB/s")
            ]
        );
        assert_eq!(figures[2].test, "PortChannelOneToOneTest.Bandwidth");
        assert_eq!(counterpart(&figures[2]).unwrap().2, 128 << 20);
    }

    #[test]
    fn ours_stand_beside_them_with_the_ratio() {
        let mut report = example();
        let row = &mut report["points"][0];
        row["backend"] = "proxy-ipc".into();
        row["bytes"] = 4.into();
        row["metric"] = "round trip with flush".into();
        let report = Report::parse(&serde_json::to_vec(&report).unwrap()).unwrap();
        let text = table(&parse(TEXT), Some(&report));
        let line = text.lines().find(|line| line.contains("latency")).unwrap();
        // 20 µs against 48.02.
        assert!(line.contains("0.416"), "{line}");
        let none = text.lines().find(|line| line.contains("1 KB")).unwrap();
        assert!(none.contains(" - "), "{none}");
    }
}
