// SPDX-License-Identifier: MIT
//! Finding `mpirun` and writing its command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::launch::find_program;
use crate::supervise::Interrupt;
use crate::workspace::run;

/// How long `mpirun --version` may take.
const VERSION_PATIENCE: Duration = Duration::from_secs(20);

/// Whose `mpirun` it is: they differ in options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Open MPI and its major version.
    OpenMpi(u32),
    /// MPICH, Intel MPI and others that use Hydra.
    Hydra,
}

/// An `mpirun` that can be used.
#[derive(Clone, Debug)]
pub struct Mpi {
    /// Its path.
    pub program: PathBuf,
    /// Whose it is.
    pub flavour: Flavour,
}

/// Reads what `mpirun --version` prints.
pub fn identify(version: &str) -> Option<Flavour> {
    if let Some((_, rest)) = version.split_once("(Open MPI) ") {
        let major = rest.split('.').next()?.parse().ok()?;
        return Some(Flavour::OpenMpi(major));
    }
    let hydra = version.contains("HYDRA") || version.contains("Intel(R) MPI");
    hydra.then_some(Flavour::Hydra)
}

impl Mpi {
    /// Looks for `mpirun` on the search path. The error says in words why there
    /// is none to use.
    ///
    /// # Errors
    ///
    /// When there is none, or one of a kind that is not known.
    pub fn find(interrupt: &Interrupt) -> Result<Self, String> {
        let program = find_program("mpirun").ok_or("there is no mpirun on the search path")?;
        let mut command = Command::new(&program);
        command.arg("--version");
        let mut text = String::new();
        let ran = run(command, Some(VERSION_PATIENCE), interrupt, &mut |line| {
            text.push_str(&String::from_utf8_lossy(&line.bytes));
            text.push('\n');
            Ok(())
        });
        let name = program.display();
        ran.map_err(|error| format!("{name}: {error:#}"))?;
        let flavour = identify(&text)
            .ok_or_else(|| format!("{name} is neither Open MPI's nor Hydra's: {text:?}"))?;
        Ok(Self { program, flavour })
    }

    /// The arguments that run `command` on `ranks` ranks with `environment`.
    ///
    /// `as_root` is whether the user is root, which Open MPI wants confirmed.
    pub fn arguments(
        &self,
        ranks: usize,
        as_root: bool,
        environment: &[(&str, OsString)],
        command: &[OsString],
    ) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["-n".into(), ranks.to_string().into()];
        let mut add = |words: &[&OsStr]| args.extend(words.iter().map(|word| word.into()));
        match self.flavour {
            Flavour::OpenMpi(major) => {
                if as_root {
                    add(&["--allow-run-as-root".as_ref()]);
                }
                // More ranks than cores, and no rank tied to one core: its
                // kernel threads need more.
                if major >= 5 {
                    add(&["--map-by", "slot:OVERSUBSCRIBE"].map(OsStr::new));
                } else {
                    add(&["--oversubscribe".as_ref()]);
                }
                add(&["--bind-to", "none"].map(OsStr::new));
                for (name, _) in environment {
                    add(&["-x", name].map(OsStr::new));
                }
            }
            Flavour::Hydra => {
                for (name, value) in environment {
                    add(&["-genv".as_ref(), name.as_ref(), value]);
                }
            }
        }
        args.extend(command.iter().cloned());
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(flavour: Flavour, as_root: bool) -> String {
        let mpi = Mpi {
            program: "mpirun".into(),
            flavour,
        };
        let environment = [("MSCCLPP_ROOT", OsString::from("file:/tmp/j/root"))];
        let command = ["suite".into(), "--filter".into(), "a b".into()];
        let args = mpi.arguments(3, as_root, &environment, &command);
        let words: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        words.join("|")
    }

    #[test]
    fn open_mpi_4_is_told_that_there_are_more_ranks_than_cores() {
        assert_eq!(
            line(Flavour::OpenMpi(4), true),
            "-n|3|--allow-run-as-root|--oversubscribe|--bind-to|none|-x|MSCCLPP_ROOT|suite|--filter|a b"
        );
    }

    #[test]
    fn open_mpi_5_has_another_option_to_oversubscribe() {
        assert_eq!(
            line(Flavour::OpenMpi(5), false),
            "-n|3|--map-by|slot:OVERSUBSCRIBE|--bind-to|none|-x|MSCCLPP_ROOT|suite|--filter|a b"
        );
    }

    #[test]
    fn hydra_is_given_the_environment_by_value() {
        assert_eq!(
            line(Flavour::Hydra, true),
            "-n|3|-genv|MSCCLPP_ROOT|file:/tmp/j/root|suite|--filter|a b"
        );
    }

    #[test]
    fn known_kinds_are_told_by_their_version_text() {
        assert_eq!(
            identify("mpirun (Open MPI) 4.1.4\n\nReport bugs to …"),
            Some(Flavour::OpenMpi(4))
        );
        assert_eq!(
            identify("mpirun (Open MPI) 5.0.7rc1"),
            Some(Flavour::OpenMpi(5))
        );
        let hydra = "HYDRA build details:\n    Version:    4.0.2";
        assert_eq!(identify(hydra), Some(Flavour::Hydra));
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.9";
        assert_eq!(identify(intel), Some(Flavour::Hydra));
        assert_eq!(identify("mpirun (Open MPI) new"), None);
        assert_eq!(identify(""), None);
    }
}
