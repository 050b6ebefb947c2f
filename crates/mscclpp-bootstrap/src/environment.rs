// SPDX-License-Identifier: MIT
//! Which variables of this crate are set to what cannot be used, for whoever looks before a job starts.

use std::ffi::OsString;
use std::path::Path;

use crate::interface::{self, COMM_ID, FAMILY, IFNAME, Rules};
use crate::launcher::{self, Launcher, ROOT};
use crate::secret::{self, FILE as SECRET_FILE, TEXT as SECRET};
use crate::{BootstrapError, Deadlines, Secret};

/// A variable that is ignored, stops ranks from joining, or makes joining unsafe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its name.
    pub variable: String,
    /// What is wrong, with the name. No secret is in it.
    pub why: String,
    /// What to write.
    pub fix: String,
}

impl Fault {
    /// A fault of a variable.
    #[must_use]
    pub fn new(variable: &str, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            variable: variable.into(),
            why: why.into(),
            fix: fix.into(),
        }
    }
}

/// Looks at each variable of this crate, as `variable` gives them by name, with the eyes of those who
/// read it; at the secret file and this machine's network interfaces, too.
#[must_use]
pub fn faults(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Fault> {
    let shown = |name: &str| Some(variable(name)?.to_string_lossy().into_owned());
    let get = |name: &str| launcher::text(name, variable(name));
    let fault = |name: &str, error: BootstrapError, fix: String| {
        let mut why = error.to_string();
        if !why.contains(name) {
            why = format!("{name}={}: {why}", shown(name).unwrap_or_default());
        }
        Fault::new(name, why, fix)
    };
    let mut faults = Deadlines::faults(shown);

    for name in launcher::OWN {
        if let Err(error) = launcher::number(&get, name) {
            faults.push(fault(name, error, format!("{name}=NUMBER, from 0")));
        }
    }
    let own = |name: &str| match launcher::OWN.contains(&name) {
        // What is no number is told above.
        true => Ok(get(name).ok().flatten()),
        false => Ok(None),
    };
    if let Err(BootstrapError::BadEnvironment {
        variable,
        value,
        reason,
    }) = launcher::detect_in(&own)
        && !faults.iter().any(|fault| fault.variable == variable)
    {
        let [rank, world, local_rank, local_size] = launcher::OWN;
        let fix = format!("{rank} below {world}, and {local_rank} below {local_size}");
        let why = format!("{variable}={value}: {reason}");
        faults.push(Fault::new(&variable, why, fix));
    }
    let root = |name: &str| if name == ROOT { get(name) } else { Ok(None) };
    match launcher::root_in(&root, Launcher::Mscclpp) {
        // It is not set.
        Ok(_) | Err(BootstrapError::NoRoot { .. }) => {}
        Err(error) => {
            let fix = "ip:port, [ipv6]:port, interface:ip:port or file:PATH";
            faults.push(fault(ROOT, error, format!("{ROOT}={fix}")));
        }
    }
    faults.extend(secret(&variable));

    let single = |name: &str, fix: String| {
        let only = |other: &str| if other == name { get(name) } else { Ok(None) };
        let error = Rules::from_variables(only).map(drop).and_then(|()| {
            // The rest of the rules prefer addresses, and exclude none.
            let chooses = name != COMM_ID && only(name)?.is_some();
            if chooses {
                interface::fits(&only)
            } else {
                Ok(())
            }
        });
        error.err().map(|error| fault(name, error, fix))
    };
    let fix = "PREFIXES of names of interfaces that are there, with commas between";
    let mut rules = vec![
        single(IFNAME, format!("{IFNAME}={fix}")),
        single(FAMILY, format!("{FAMILY}=AF_INET or AF_INET6")),
    ];
    if rules.iter().all(Option::is_none)
        && variable(IFNAME).is_some()
        && let Err(error) = interface::fits(&get)
    {
        let fix = format!("{IFNAME} with an interface that has an address of {FAMILY}");
        rules.push(Some(fault(FAMILY, error, fix)));
    }
    rules.push(single(COMM_ID, format!("{COMM_ID}=ip:port")));
    faults.extend(rules.into_iter().flatten());
    faults
}

/// Also what is taken with a warning: a secret that is short, a file that others may read.
fn secret(variable: &impl Fn(&str) -> Option<OsString>) -> Option<Fault> {
    let (text, file) = (variable(SECRET), variable(SECRET_FILE));
    let name = if text.is_some() { SECRET } else { SECRET_FILE };
    let secret = match Secret::from_variables(variable) {
        Ok(secret) => secret?,
        Err(error) => {
            let mut why = error.to_string();
            if !why.contains(name) {
                why = format!("{name}: {why}");
            }
            let fix = match (text, file) {
                (Some(_), Some(_)) => format!("unset {SECRET}"),
                (None, Some(_)) => {
                    format!("{SECRET_FILE}=PATH of a file with 16 random bytes or more")
                }
                _ => format!("{SECRET}=TEXT, 16 random characters or more"),
            };
            return Some(Fault::new(name, why, fix));
        }
    };
    if secret.is_short() {
        let why = format!("the secret of {name} is short enough to be guessed");
        return Some(Fault::new(
            name,
            why,
            format!("16 random bytes or more for {name}"),
        ));
    }
    let path = file?;
    let file = crate::file::open(Path::new(&path)).ok()?;
    secret::others_may_open(&file).then(|| {
        let path = path.to_string_lossy();
        let why = format!("{name}={path}: others than its owner may open it");
        Fault::new(name, why, format!("chmod 600 {path}"))
    })
}
