// SPDX-License-Identifier: MIT
//! What the program that started this process says about it.
//!
//! Looked for in this order, because an inner launcher's variables stand beside
//! an outer one's:
//!
//! | launcher | variables |
//! |---|---|
//! | this project's own, or you | `MSCCLPP_RANK`, `MSCCLPP_WORLD_SIZE`, `MSCCLPP_LOCAL_RANK`, `MSCCLPP_LOCAL_SIZE` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE` |
//! | MPICH, Intel MPI (Hydra) | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
//! | torchrun | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`; rank 0 at `MASTER_ADDR`, `MASTER_PORT` |
//! | Slurm | `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID` |
//!
//! `MSCCLPP_ROOT` says where rank 0 is, whatever the launcher: `ip:port`,
//! `interface:ip:port`, `[ipv6]:port`, or `file:PATH`. In the last form rank 0
//! takes a free port and publishes its address in that file, on a file system
//! that all ranks share; the file is replaced at once and removed after joining.

use std::ffi::OsString;
use std::fmt;

use crate::BootstrapError;
use crate::address::Root;

/// Which program started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// `cargo xtask`, or anything else that sets this project's variables.
    Mscclpp,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH or Intel MPI.
    Hydra,
    /// `torchrun`.
    Torchrun,
    /// `srun`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mscclpp => "the environment (MSCCLPP_RANK)",
            Self::OpenMpi => "Open MPI",
            Self::Hydra => "MPICH/Hydra",
            Self::Torchrun => "torchrun",
            Self::Slurm => "Slurm",
        })
    }
}

/// What a launcher says about this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LauncherInfo {
    /// Which one it is.
    pub launcher: Launcher,
    /// The rank of this process, below `world`.
    pub rank: usize,
    /// How many processes there are.
    pub world: usize,
    /// The number of this process among those of its machine, where it is told.
    pub local_rank: Option<usize>,
    /// How many processes this machine has, where it is told.
    pub local_size: Option<usize>,
}

/// The launcher of this process, `None` when none is recognised.
///
/// # Errors
/// [`BootstrapError::BadEnvironment`] when the variables contradict each other or
/// are no numbers.
pub fn detect() -> Result<Option<LauncherInfo>, BootstrapError> {
    detect_in(&environment)
}

/// A variable's text, `None` when it is not set or blank.
pub(crate) fn environment(name: &str) -> Result<Option<String>, BootstrapError> {
    text(name, std::env::var_os(name))
}

/// A variable's text, `None` when it is not set or blank.
pub(crate) fn text(name: &str, value: Option<OsString>) -> Result<Option<String>, BootstrapError> {
    let Some(value) = value else {
        return Ok(None);
    };
    match value.into_string() {
        Ok(text) => Ok(Some(text).filter(|text| !text.trim().is_empty())),
        Err(value) => Err(BootstrapError::BadEnvironment {
            variable: name.into(),
            value: value.to_string_lossy().into_owned(),
            reason: "that is no UTF-8 text".into(),
        }),
    }
}

pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Result<Option<String>, BootstrapError>;

/// The variables of one launcher: rank, world size, local rank, local size.
const KNOWN: [(Launcher, [&str; 4]); 5] = [
    (
        Launcher::Mscclpp,
        [
            "MSCCLPP_RANK",
            "MSCCLPP_WORLD_SIZE",
            "MSCCLPP_LOCAL_RANK",
            "MSCCLPP_LOCAL_SIZE",
        ],
    ),
    (
        Launcher::OpenMpi,
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
    ),
    (
        Launcher::Hydra,
        ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    ),
    (
        Launcher::Torchrun,
        ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
    ),
    (
        Launcher::Slurm,
        ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""],
    ),
];

/// The variables of this project: rank, world size, local rank, local size.
pub(crate) const OWN: [&str; 4] = KNOWN[0].1;

pub(crate) fn detect_in(get: Variables<'_>) -> Result<Option<LauncherInfo>, BootstrapError> {
    for (launcher, [rank, world, local_rank, local_size]) in KNOWN {
        let found = match (number(get, rank)?, number(get, world)?) {
            (Some(rank), Some(world)) => (rank, world),
            // These two names are too common to insist on both.
            _ if launcher == Launcher::Torchrun => continue,
            (None, None) => continue,
            (Some(value), None) => return Err(alone(rank, value, world)),
            // Set in a Slurm allocation outside of any task, too.
            (None, Some(_)) if launcher == Launcher::Slurm => continue,
            (None, Some(value)) => return Err(alone(world, value, rank)),
        };
        let info = LauncherInfo {
            launcher,
            rank: found.0,
            world: found.1,
            local_rank: number(get, local_rank)?,
            local_size: number(get, local_size)?,
        };
        check(rank, info.rank, info.world)?;
        if let (Some(local), Some(size)) = (info.local_rank, info.local_size) {
            check(local_rank, local, size)?;
        }
        return Ok(Some(info));
    }
    Ok(None)
}

fn check(variable: &str, value: usize, size: usize) -> Result<(), BootstrapError> {
    if value < size {
        return Ok(());
    }
    Err(BootstrapError::BadEnvironment {
        variable: variable.into(),
        value: value.to_string(),
        reason: format!("there are {size}, numbered from 0"),
    })
}

fn alone(variable: &str, value: usize, other: &str) -> BootstrapError {
    BootstrapError::BadEnvironment {
        variable: variable.into(),
        value: value.to_string(),
        reason: format!("{other} is not set; set both or none"),
    }
}

pub(crate) fn number(get: Variables<'_>, variable: &str) -> Result<Option<usize>, BootstrapError> {
    let Some(text) = get(variable)? else {
        return Ok(None);
    };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(BootstrapError::BadEnvironment {
            variable: variable.into(),
            value: text,
            reason: "that is no number from 0".into(),
        }),
    }
}

/// The variable that says where rank 0 is.
pub(crate) const ROOT: &str = "MSCCLPP_ROOT";

/// Where the ranks of this launcher meet.
pub(crate) fn root_in(get: Variables<'_>, launcher: Launcher) -> Result<Root, BootstrapError> {
    if let Some(value) = get(ROOT)? {
        return value.parse().map_err(|error| match error {
            BootstrapError::BadAddress { reason, .. } => BootstrapError::BadEnvironment {
                variable: ROOT.into(),
                value,
                reason: format!(
                    "{reason}; write ip:port, [ipv6]:port, interface:ip:port or file:PATH"
                ),
            },
            other => other,
        });
    }
    if launcher == Launcher::Torchrun
        && let (Some(host), Some(port)) = (get("MASTER_ADDR")?, get("MASTER_PORT")?)
    {
        return match port.trim().parse() {
            Ok(port) if port != 0 => Ok(Root::Named {
                host: host.trim().to_owned(),
                port,
            }),
            _ => Err(BootstrapError::BadEnvironment {
                variable: "MASTER_PORT".into(),
                value: port,
                reason: "that is no port from 1 to 65535".into(),
            }),
        };
    }
    Err(BootstrapError::NoRoot {
        launcher: launcher.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Set<'a> = &'a [(&'a str, &'a str)];

    fn get(set: Set<'_>) -> impl Fn(&str) -> Result<Option<String>, BootstrapError> {
        move |name| {
            let found = set.iter().find(|(n, _)| *n == name);
            Ok(found.map(|(_, value)| (*value).to_owned()))
        }
    }

    type Found = (Launcher, usize, usize, Option<usize>, Option<usize>);

    fn found(set: Set<'_>) -> Option<Found> {
        detect_in(&get(set))
            .unwrap()
            .map(|i| (i.launcher, i.rank, i.world, i.local_rank, i.local_size))
    }

    #[test]
    fn each_launcher_is_recognised() {
        assert_eq!(found(&[]), None);
        assert_eq!(
            found(&[("MSCCLPP_RANK", "1"), ("MSCCLPP_WORLD_SIZE", "4")]),
            Some((Launcher::Mscclpp, 1, 4, None, None))
        );
        assert_eq!(
            found(&[
                ("OMPI_COMM_WORLD_RANK", "3"),
                ("OMPI_COMM_WORLD_SIZE", "8"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ]),
            Some((Launcher::OpenMpi, 3, 8, Some(1), Some(2)))
        );
        assert_eq!(
            found(&[
                ("PMI_RANK", "0"),
                ("PMI_SIZE", "2"),
                ("MPI_LOCALRANKID", "0")
            ]),
            Some((Launcher::Hydra, 0, 2, Some(0), None))
        );
        assert_eq!(
            found(&[
                ("SLURM_PROCID", "5"),
                ("SLURM_NTASKS", "6"),
                ("SLURM_LOCALID", "1")
            ]),
            Some((Launcher::Slurm, 5, 6, Some(1), None))
        );
        assert_eq!(
            found(&[("RANK", "5"), ("WORLD_SIZE", "6"), ("LOCAL_RANK", "1")]),
            Some((Launcher::Torchrun, 5, 6, Some(1), None))
        );
    }

    #[test]
    fn the_inner_launcher_wins_over_the_allocation_around_it() {
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
        let inner = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")];
        let both = [slurm, inner].concat();
        assert_eq!(found(&both).map(|f| f.0), Some(Launcher::OpenMpi));
        assert_eq!(found(&[("SLURM_NTASKS", "4")]), None);
        assert_eq!(found(&[("RANK", "4")]), None);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for set in [
            &[("MSCCLPP_RANK", "1")][..],
            &[("MSCCLPP_WORLD_SIZE", "1")],
            &[("PMI_RANK", "2"), ("PMI_SIZE", "2")],
            &[("PMI_RANK", "-1"), ("PMI_SIZE", "2")],
            &[("MSCCLPP_RANK", "0"), ("MSCCLPP_WORLD_SIZE", "0")],
            &[("RANK", "x"), ("WORLD_SIZE", "2")],
        ] {
            assert!(
                matches!(
                    detect_in(&get(set)),
                    Err(BootstrapError::BadEnvironment { .. })
                ),
                "{set:?}"
            );
        }
    }

    /// Each line of the input is the value of one variable; an empty one sets nothing.
    #[test]
    fn fuzz_launcher() {
        let names = KNOWN.iter().flat_map(|(_, names)| names);
        let mut names: Vec<&str> = names.copied().filter(|name| !name.is_empty()).collect();
        names.extend(["MSCCLPP_ROOT", "MASTER_ADDR", "MASTER_PORT"]);
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let set: Vec<(&str, &str)> = names.iter().copied().zip(text.lines()).collect();
            let get = |name: &str| {
                get(&set)(name).map(|value| value.filter(|value| !value.trim().is_empty()))
            };
            mscclpp_fuzz::in_proportion(bytes, || {
                let found = detect_in(&get);
                if let Ok(Some(info)) = found {
                    assert!(info.rank < info.world);
                    let _ = root_in(&get, info.launcher);
                }
            });
        });
    }

    #[test]
    fn the_root_is_named_or_asked_for() {
        let torch = [("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
        assert_eq!(
            root_in(&get(&torch), Launcher::Torchrun).unwrap(),
            Root::Named {
                host: "node1".into(),
                port: 29500
            }
        );
        let file = [torch[0], torch[1], ("MSCCLPP_ROOT", "file:/x")];
        assert_eq!(
            root_in(&get(&file), Launcher::Torchrun).unwrap(),
            Root::File("/x".into())
        );
        let error = root_in(&get(&torch), Launcher::OpenMpi).unwrap_err();
        assert!(error.to_string().contains("MSCCLPP_ROOT"));
    }
}
