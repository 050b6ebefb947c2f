// SPDX-License-Identifier: MIT
//! One run of a guest: the job it does, qemu's command line, and how it ended.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::kernel::Kernel;
use super::{RxeError, initramfs, preflight};
use crate::supervise::{Ending, Interrupt, OnLine};
use crate::workspace::{describe, run};

const NETWORK: &str = include_str!("network.sh");

/// A directory of the host, as the guest sees it: what is written there stays for [`Done`].
pub const JOB: &str = "/rxe-job";
/// Set in the guest.
pub const IN_GUEST: &str = "RXE_VM_GUEST";
/// Where the kernel is kept, if not in the target directory.
const CACHE: &str = "MSCCLPP_RXE_CACHE";

/// qemu's exit status when the guest's first process says that the job has ended.
const ENDED: i32 = 33;
/// Lines of the console that are shown when a guest fails.
const CONSOLE_LINES: usize = 60;
/// Variables of this process that the guest gets, by how they begin.
const PASSED_ON: [&str; 8] = [
    "CARGO_",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "MSCCLPP_",
    "PATH",
    "RUST",
    "TMPDIR",
];

/// Soft-RoCE devices of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Network {
    /// None.
    None,
    /// rxe0, with the address 10.77.0.1.
    One,
    /// rxe0 and rxe1, with the addresses 10.77.0.1 and 10.77.0.2, and a link between the two.
    Two,
}

impl Network {
    /// As the guest's script calls it.
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::One => "one",
            Self::Two => "two",
        }
    }
}

/// What guests of this machine boot from.
#[derive(Clone, Debug)]
pub struct Machine {
    kernel: Kernel,
    archive: PathBuf,
    directory: PathBuf,
}

/// How a command ended that came to its end.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its exit status.
    pub status: ExitStatus,
    /// The kernel's counts of verbs objects before the command and after it, if they differ.
    pub left: Option<String>,
    /// What the command wrote to [`JOB`], gone with this.
    pub directory: Arc<TempDir>,
}

/// A command for a guest.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its devices.
    pub network: Network,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Variables of its environment.
    pub environment: Vec<(String, OsString)>,
    /// For the guest's whole life.
    pub timeout: Duration,
}

impl Machine {
    /// Checks what is installed and downloads the kernel if need be. `target` is where builds go.
    ///
    /// # Errors
    ///
    /// [`RxeError::Missing`], or what the system says.
    pub fn prepare(target: &Path, interrupt: &Interrupt) -> Result<Self> {
        preflight::check()?;
        let directory = match std::env::var_os(CACHE) {
            Some(path) => path.into(),
            None => target.join("rxe"),
        };
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let directory = fs::canonicalize(directory)?;
        let kernel = Kernel::fetch(&directory, interrupt)?;
        let archive = directory.join("initramfs");
        // Another run may boot from the one that is there.
        let mut draft = tempfile::NamedTempFile::new_in(&directory)?;
        std::io::Write::write_all(&mut draft, &initramfs::build(&kernel)?)?;
        draft.persist(&archive)?;
        Ok(Self {
            kernel,
            archive,
            directory,
        })
    }

    /// The kernel's version.
    pub fn kernel(&self) -> &str {
        &self.kernel.version
    }

    /// Runs a command in a guest of its own. The lines of `Stream::Out` are those of both its outputs,
    /// in order; the others are qemu's.
    ///
    /// # Errors
    ///
    /// [`RxeError`] unless the command came to its end, whatever its status.
    pub fn run(&self, job: &Job, interrupt: &Interrupt, on_line: OnLine<'_>) -> Result<Done> {
        let directory = tempfile::Builder::new()
            .prefix("job-")
            .tempdir_in(&self.directory)?;
        let nonce = nonce()?;
        fs::write(directory.path().join("nonce"), &nonce)?;
        fs::write(directory.path().join("job.sh"), script(job)?)?;
        let console = directory.path().join("console");
        let started = Instant::now();
        let ending = run(
            self.qemu(&directory, &console),
            Some(job.timeout),
            interrupt,
            on_line,
        )?;
        let seconds = started.elapsed().as_secs();
        let status = fs::read_to_string(directory.path().join("status")).ok();
        let status = status.and_then(|text| attested(&text, &nonce));
        let console = || tail(&console);
        match (&ending, status) {
            (Ending::Failed { status: qemu, .. }, Some(status)) if qemu.code() == Some(ENDED) => {
                let left = left(directory.path())?;
                let directory = Arc::new(directory);
                Ok(Done {
                    status,
                    left,
                    directory,
                })
            }
            (Ending::Deadline { .. }, _) => Err(RxeError::Deadline {
                seconds,
                console: console(),
            }
            .into()),
            (Ending::Interrupted { .. } | Ending::Output(_), _) => bail!("{}", describe(&ending)),
            (Ending::Finished | Ending::Failed { .. }, status) => {
                let end = match status {
                    Some(status) => format!("the command: {status}"),
                    None => "the command did not end".to_owned(),
                };
                let how = format!("qemu: {}; {end}", describe(&ending));
                let console = console();
                Err(RxeError::Guest { how, console }.into())
            }
        }
    }

    fn qemu(&self, job: &TempDir, console: &Path) -> Command {
        let mut command = Command::new("qemu-system-x86_64");
        let mut add = |words: &[&str]| {
            command.args(words);
        };
        add(&["-accel", "tcg,thread=multi"]);
        // Without "rep movsb", by which the emulated kernel would copy byte by byte: aligned writes of
        // 8 bytes must not tear, as they do not on hardware.
        add(&["-cpu", "max,-erms,-fsrm"]);
        add(&["-machine", "q35", "-m", "1536", "-smp", "2"]);
        add(&["-nodefaults", "-no-user-config", "-no-reboot"]);
        add(&["-display", "none", "-nic", "none"]);
        add(&["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        // What the job writes comes out of qemu's standard output. Not by "stdio", which ends where
        // standard input does.
        add(&["-chardev", "file,id=out,path=/dev/stdout"]);
        add(&["-device", "virtio-serial-pci"]);
        add(&["-device", "virtserialport,chardev=out"]);
        add(&["-append", APPEND]);
        command.arg("-kernel").arg(&self.kernel.image);
        command.arg("-initrd").arg(&self.archive);
        let mut file = OsString::from("file:");
        file.push(comma(console));
        command.arg("-serial").arg(file);
        for (tag, path, more) in [
            ("root", Path::new("/"), ",readonly=on"),
            ("job", job.path(), ""),
        ] {
            let mut fsdev = OsString::from(format!("local,id={tag},path="));
            fsdev.push(comma(path));
            fsdev.push(format!(",security_model=none,multidevs=remap{more}"));
            command.arg("-fsdev").arg(fsdev);
            let device = format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}");
            command.arg("-device").arg(device);
        }
        command
    }
}

/// The kernel's command line: an oops is an end, and so is a panic.
const APPEND: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off audit=0 \
    random.trust_cpu=1";

/// A path in an option of qemu, where a comma is written twice.
fn comma(path: &Path) -> OsString {
    let mut text = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        text.push(*byte);
        if *byte == b',' {
            text.push(*byte);
        }
    }
    OsStr::from_bytes(&text).to_owned()
}

fn nonce() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).context("random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The status in what the job's shell wrote, if it is of this run.
fn attested(text: &str, nonce: &str) -> Option<ExitStatus> {
    let (status, of) = text.trim().split_once(' ')?;
    let status: i32 = status.parse().ok()?;
    // The raw form of a process that exited.
    (of == nonce && (0..256).contains(&status)).then(|| ExitStatus::from_raw(status << 8))
}

/// What a command left behind of verbs objects.
fn left(job: &Path) -> Result<Option<String>> {
    let read = |name| fs::read_to_string(job.join(name)).context("the kernel's counts of objects");
    let (before, after) = (read("resources.before")?, read("resources.after")?);
    let (before, after) = (before.trim(), after.trim());
    Ok((before != after).then(|| format!("before: {before}\nafter:  {after}")))
}

fn tail(console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n")
}

/// A word that a shell takes as it is.
fn quote(word: &OsStr) -> Result<String> {
    let word = word.to_str().context("an argument is not UTF-8")?;
    Ok(format!("'{}'", word.replace('\'', r"'\''")))
}

/// The shell script that sets the devices up and runs the command.
fn script(job: &Job) -> Result<String> {
    let mut text = String::new();
    let passed_on = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        PASSED_ON.iter().any(|start| name.starts_with(start)) && name.chars().all(plain)
    });
    for (name, value) in passed_on {
        writeln!(text, "export {}={}", name.to_string_lossy(), quote(&value)?)?;
    }
    writeln!(
        text,
        "export {IN_GUEST}=1 RXE_NETWORK={}",
        job.network.name()
    )?;
    writeln!(text, "export PATH=\"$PATH:/usr/sbin:/sbin\"")?;
    // As the arguments do that xtask gives to mpirun, for those who call it themselves.
    writeln!(
        text,
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
         OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none"
    )?;
    for (name, value) in &job.environment {
        writeln!(text, "export {name}={}", quote(value)?)?;
    }
    text.push_str(NETWORK);
    writeln!(
        text,
        "(rxe_network) || {{ echo 'the devices cannot be set up' >&2; exit 125; }}"
    )?;
    writeln!(text, "ulimit -l unlimited")?;
    let here = std::env::current_dir()?;
    writeln!(text, "cd {} || exit 125", quote(here.as_os_str())?)?;
    writeln!(
        text,
        "rdma resource show >{JOB}/resources.before || exit 125"
    )?;
    for word in &job.command {
        write!(text, "{} ", quote(word)?)?;
    }
    writeln!(text, "\nstatus=$?")?;
    writeln!(text, "rdma resource show >{JOB}/resources.after")?;
    writeln!(text, "exit $status")?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_counts_with_the_nonce_of_its_run_only() {
        assert_eq!(attested("3 abc\n", "abc").unwrap().code(), Some(3));
        assert!(attested("0 abc\n", "abc").unwrap().success());
        for text in [
            "0 other",
            "0",
            "",
            "0 abc def",
            "x abc",
            "-1 abc",
            "256 abc",
        ] {
            assert_eq!(attested(text, "abc"), None, "{text:?}");
        }
    }

    #[test]
    fn words_arrive_at_the_command_as_they_are() {
        let words = ["printf", "%s|", "a b", "it's", "$HOME \"x\"", "", "a\nb"];
        let job = Job {
            network: Network::None,
            command: words.map(OsString::from).into(),
            environment: vec![("RXE_TEST".into(), "a 'b'".into())],
            timeout: Duration::from_secs(1),
        };
        let text = script(&job).unwrap();
        // What is there in a guest only.
        let text: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with("rdma "))
            .collect();
        let output = Command::new("sh")
            .args(["-c", &text.join("\n")])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, "a b|it's|$HOME \"x\"||a\nb|");
        assert!(script(&job).unwrap().contains(r"RXE_TEST='a '\''b'\'''"));
    }

    #[test]
    fn a_comma_of_a_path_does_not_end_the_option() {
        assert_eq!(comma(Path::new("/a,b/c")), "/a,,b/c");
    }
}
