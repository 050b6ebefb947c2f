// SPDX-License-Identifier: MIT
//! Recorded machines: a text file each, unpacked into a directory with sysfs's files and links.
//!
//! A line is a directive; `#` starts a comment. Values with spaces stand in double quotes.
//!
//! ```text
//! pci PATH key=value...          a function: PATH from its host bridge, a file for each key
//! config ADDRESS OFFSET=HEX...   its PCI configuration, the rest of 256 bytes zero
//! node N                         a NUMA node
//! net NAME flags=.. mtu=..       a network interface
//! hca NAME at ADDRESS key=value  an RDMA device (`at -` for one in software), a file for each key
//! port HCA N key=value...        a port of it
//! gid HCA N INDEX ADDRESS TYPE [INTERFACE]
//! file PATH                      a file of the lines up to one that is `end`
//! live WORD...                   what files do not say; left to the reader
//! ```

use std::fs;
use std::net::Ipv6Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::Root;

/// A machine that was unpacked.
pub(crate) struct Recorded {
    directory: tempfile::TempDir,
    /// Words of its `live` lines.
    pub(crate) live: Vec<Vec<String>>,
}

impl Recorded {
    /// The machine `NAME.machine` among the recorded ones.
    pub(crate) fn open(name: &str) -> Self {
        let path = Self::directory().join(format!("{name}.machine"));
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut recorded = Self {
            directory: tempfile::tempdir().unwrap(),
            live: Vec::new(),
        };
        recorded.unpack(&text);
        recorded
    }

    pub(crate) fn directory() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines")
    }

    pub(crate) fn root(&self) -> Root {
        Root::at(self.directory.path())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn keys(&self, directory: &str, words: &[String]) {
        fs::create_dir_all(self.path(directory)).unwrap();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or_else(|| panic!("{word}"));
            self.write(&format!("{directory}/{key}"), format!("{value}\n"));
        }
    }

    /// A link as sysfs makes them: relative.
    fn link(&self, link: &str, target: &str) {
        let up = "../".repeat(link.trim_matches('/').split('/').count() - 1);
        let path = self.path(link);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(format!("{up}{}", target.trim_start_matches('/')), path).unwrap();
    }

    fn unpack(&mut self, text: &str) {
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let words = split(line);
            let refs: Vec<&str> = words.iter().map(String::as_str).collect();
            match refs.as_slice() {
                [] => {}
                ["pci", path, ..] => {
                    let directory = format!("/sys/devices/{path}");
                    self.keys(&directory, &words[2..]);
                    let address = path.rsplit('/').next().unwrap();
                    self.link(&format!("/sys/bus/pci/devices/{address}"), &directory);
                }
                ["config", address, ..] => {
                    let mut config = [0; 256];
                    for word in &words[2..] {
                        let (at, bytes) = word.split_once('=').unwrap();
                        let at = usize::from_str_radix(at, 16).unwrap();
                        for (index, byte) in bytes.as_bytes().chunks(2).enumerate() {
                            let byte = std::str::from_utf8(byte).unwrap();
                            config[at + index] = u8::from_str_radix(byte, 16).unwrap();
                        }
                    }
                    self.write(&format!("/sys/bus/pci/devices/{address}/config"), config);
                }
                ["node", number] => {
                    self.keys(&format!("/sys/devices/system/node/node{number}"), &[])
                }
                ["net", name, ..] => self.keys(&format!("/sys/class/net/{name}"), &words[2..]),
                ["hca", name, "at", place, ..] => {
                    let parent = match *place {
                        "-" => "/sys/devices/virtual".to_owned(),
                        place => {
                            let root = self.root();
                            (root.resolve(&format!("/sys/bus/pci/devices/{place}"))).unwrap()
                        }
                    };
                    let directory = format!("{parent}/infiniband/{name}");
                    self.keys(&directory, &words[4..]);
                    self.link(&format!("/sys/class/infiniband/{name}"), &directory);
                    if *place != "-" {
                        self.link(&format!("{directory}/device"), &parent);
                    }
                }
                ["uverbs", file, name] => {
                    let directory = format!("/sys/class/infiniband_verbs/{file}");
                    self.keys(&directory, &[format!("ibdev={name}")]);
                }
                ["port", name, number, ..] => {
                    let directory = format!("/sys/class/infiniband/{name}/ports/{number}");
                    self.keys(&directory, &words[3..]);
                    // Empty entries are there, too.
                    for index in 0..4 {
                        let zero = "0000:".repeat(7) + "0000\n";
                        self.write(&format!("{directory}/gids/{index}"), zero);
                    }
                }
                ["gid", name, number, index, address, kind, rest @ ..] => {
                    let port = format!("/sys/class/infiniband/{name}/ports/{number}");
                    let segments = address.parse::<Ipv6Addr>().unwrap().segments();
                    let words = segments.map(|segment| format!("{segment:04x}"));
                    self.write(&format!("{port}/gids/{index}"), words.join(":") + "\n");
                    let attributes = format!("{port}/gid_attrs");
                    self.write(&format!("{attributes}/types/{index}"), format!("{kind}\n"));
                    if let [netdev] = rest {
                        self.write(
                            &format!("{attributes}/ndevs/{index}"),
                            format!("{netdev}\n"),
                        );
                    }
                }
                ["link", link, target] => self.link(link, target),
                ["file", path] => {
                    let text: Vec<&str> =
                        lines.by_ref().take_while(|line| *line != "end").collect();
                    self.write(path, text.join("\n") + "\n");
                }
                ["live", ..] => self.live.push(words[1..].to_vec()),
                _ => panic!("{line}"),
            }
        }
    }
}

/// Words of a line; those with spaces stand in quotes.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            '#' if !quoted => break,
            ' ' if !quoted => words.extend(Some(std::mem::take(&mut word))),
            c => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}
