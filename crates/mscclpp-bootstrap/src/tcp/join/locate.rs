// SPDX-License-Identifier: MIT
//! Finding rank 0, and being found.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Join;
use crate::address::Root;
use crate::secret::random;
use crate::{BootstrapError, Deadline, file, interface, socket};

/// How long rank 0 waits for a port that another process is about to give up.
const PORT_PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts to listen there.
const PORT_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks for rank 0's file, at first and later.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// The largest file with an address that is read.
const MAX_FILE: u64 = 4096;
const FILE_HEAD: &str = "mscclpp-root 1";

/// Rank 0's listener where the ranks meet, and the file that tells of it.
pub(super) struct Stand {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) notice: Option<Notice>,
}

impl Stand {
    pub(super) async fn open(join: &Join, root: &Root) -> Result<Self, BootstrapError> {
        match root {
            Root::At(root) => Self::listen(root.socket, join.deadline).await,
            Root::Named { host, port } => {
                Self::listen(look_up(host, *port, join.deadline).await?, join.deadline).await
            }
            Root::File(path) => {
                let ip = match join.options.interface.as_deref() {
                    Some(name) => interface::named(name, None)?,
                    None if join.one_machine => Ipv4Addr::LOCALHOST.into(),
                    None => interface::choose(None)?,
                };
                let mut stand = Self::listen(SocketAddr::new(ip, 0), join.deadline).await?;
                stand.notice = Some(Notice::publish(path, stand.address)?);
                Ok(stand)
            }
        }
    }

    pub(super) async fn listen(at: SocketAddr, deadline: Deadline) -> Result<Self, BootstrapError> {
        let patience = deadline.at_most(PORT_PATIENCE);
        loop {
            match socket::listen(at) {
                Ok((listener, address)) => {
                    return Ok(Self {
                        listener,
                        address,
                        notice: None,
                    });
                }
                Err(BootstrapError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::AddrInUse && !patience.expired() =>
                {
                    tokio::time::sleep(PORT_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A file that tells where rank 0 is; removed when dropped.
#[derive(Debug)]
pub(super) struct Notice {
    path: PathBuf,
    text: String,
}

impl Notice {
    /// Writes the file in one step: nobody ever sees half of it.
    fn publish(path: &Path, address: SocketAddr) -> Result<Self, BootstrapError> {
        let text = notice(address);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{:016x}", u64::from_le_bytes(random()?)));
        let temporary = path.with_file_name(name);
        let written = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()
            })
            .and_then(|()| std::fs::rename(&temporary, path));
        if let Err(source) = written {
            // It may not exist; there is nothing else to clean up.
            let _ = std::fs::remove_file(&temporary);
            return Err(BootstrapError::Io {
                operation: format!("publishing rank 0's address in {}", path.display()),
                hint: "MSCCLPP_ROOT=file:PATH needs a directory that rank 0 can write to".into(),
                source,
            });
        }
        Ok(Self {
            path: path.into(),
            text,
        })
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        // A successor may have put its own there.
        if read_text(&self.path).as_ref() == Some(&self.text)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "the file with rank 0's address stays");
        }
    }
}

/// What such a file says; `None` while there is none, or none of ours.
fn read_notice(path: &Path) -> Option<SocketAddr> {
    parse_notice(&read_text(path)?)
}

fn read_text(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = file::open(path).ok()?;
    file.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

fn notice(address: SocketAddr) -> String {
    format!("{FILE_HEAD}\n{address}\n")
}

fn parse_notice(text: &str) -> Option<SocketAddr> {
    let rest = text.strip_prefix(FILE_HEAD)?.strip_prefix('\n')?;
    rest.strip_suffix('\n')?.parse().ok()
}

/// The address of rank 0, waiting for its file where it writes one.
pub(super) async fn find(
    root: &Root,
    rank: usize,
    deadline: Deadline,
) -> Result<SocketAddr, BootstrapError> {
    let path = match root {
        Root::At(root) => return Ok(root.socket),
        Root::Named { host, port } => return look_up(host, *port, deadline).await,
        Root::File(path) => path,
    };
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(address) = read_notice(path) {
            return Ok(address);
        }
        if deadline.expired() {
            return Err(BootstrapError::Timeout {
                rank,
                operation: format!("joining: waiting for the file {}", path.display()),
                waiting_for: vec![0],
                waited: deadline.budget(),
                hint: "rank 0 writes its address there; do all ranks see the same directory?"
                    .into(),
            });
        }
        tokio::time::sleep(pause.min(deadline.remaining())).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn look_up(host: &str, port: u16, deadline: Deadline) -> Result<SocketAddr, BootstrapError> {
    let operation = || format!("looking up {host}");
    let limit = tokio::time::Instant::from_std(deadline.at());
    let found = tokio::time::timeout_at(limit, tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| BootstrapError::io(operation(), std::io::ErrorKind::TimedOut.into()))?;
    let mut addresses = found.map_err(|e| BootstrapError::io(operation(), e))?;
    let usable = |a: &SocketAddr| !matches!(a.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
    addresses
        .find(usable)
        .ok_or_else(|| BootstrapError::BadAddress {
            text: format!("{host}:{port}"),
            reason: "the name has no address".into(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_read_back_and_removed_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("root");
        let address = "127.0.0.1:77".parse().unwrap();
        assert_eq!(read_notice(&path), None);
        let notice = Notice::publish(&path, address).unwrap();
        assert_eq!(read_notice(&path), Some(address));
        drop(notice);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_stale_notice_is_replaced_and_a_newer_one_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("root");
        let old = Notice::publish(&path, "127.0.0.1:1".parse().unwrap()).unwrap();
        let new = Notice::publish(&path, "127.0.0.1:2".parse().unwrap()).unwrap();
        drop(old);
        assert_eq!(read_notice(&path), Some("127.0.0.1:2".parse().unwrap()));
        drop(new);
        assert_eq!(read_notice(&path), None);
    }

    /// Where others may write, such as in /tmp, anything may lie at the path.
    #[test]
    fn what_is_no_file_is_no_notice_and_holds_nobody_up() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [pipe, dir.path().to_owned(), "/dev/zero".into()] {
            let (done, read) = std::sync::mpsc::channel();
            // Nor does it hold up the end of a rank 0 whose notice was there.
            let (at, text) = (path.clone(), notice("127.0.0.1:1".parse().unwrap()));
            std::thread::spawn(move || {
                let found = read_notice(&at);
                drop(Notice { path: at, text });
                done.send(found)
            });
            let found = read.recv_timeout(Duration::from_secs(20));
            assert_eq!(found, Ok(None), "{}", path.display());
            assert!(path.exists());
        }
    }

    #[test]
    fn a_notice_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("root");
        let notice = Notice::publish(&path, "127.0.0.1:1".parse().unwrap()).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A link at the path is replaced, not followed.
        drop(notice);
        let target = dir.path().join("target");
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        drop(Notice::publish(&path, "127.0.0.1:1".parse().unwrap()).unwrap());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }

    #[test]
    fn fuzz_notice() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            if let Some(address) = mscclpp_fuzz::in_proportion(bytes, || parse_notice(&text)) {
                assert_eq!(parse_notice(&notice(address)), Some(address));
            }
        });
    }
}
