// SPDX-License-Identifier: MIT
//! GPU architectures.

use std::fmt;
use std::str::FromStr;

use super::NvrtcError;

/// The environment variable that [`Arch::from_env`] reads: a comma list.
pub const ARCHS_VARIABLE: &str = "MSCCLPP_GPU_ARCHS";

/// What is built for when the variable is not set.
const DEFAULT: [u32; 4] = [80, 90, 100, 120];

/// A compute capability, times ten, perhaps with a letter: `90`, `100a`.
/// Parses from `90`, `90a`, `sm_90`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arch {
    number: u32,
    letter: Option<char>,
}

impl Arch {
    /// The number without the letter.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The architectures that `MSCCLPP_GPU_ARCHS` names, else 80, 90, 100 and
    /// 120.
    ///
    /// # Errors
    ///
    /// [`NvrtcError::Arch`] with the part that is none.
    pub fn from_env() -> Result<Vec<Self>, NvrtcError> {
        // What is no text is no number either.
        let list = std::env::var_os(ARCHS_VARIABLE).unwrap_or_default();
        Self::list(&list.to_string_lossy())
    }

    /// Those of a comma list, as [`from_env`](Self::from_env) reads it; 80, 90, 100 and 120 if it is
    /// blank.
    ///
    /// # Errors
    ///
    /// [`NvrtcError::Arch`] with the part that is none.
    pub fn list(text: &str) -> Result<Vec<Self>, NvrtcError> {
        if text.trim().is_empty() {
            return Ok(DEFAULT.map(Self::from).to_vec());
        }
        text.split(',').map(str::parse).collect()
    }
}

impl From<u32> for Arch {
    fn from(number: u32) -> Self {
        Self {
            number,
            letter: None,
        }
    }
}

impl FromStr for Arch {
    type Err = NvrtcError;

    fn from_str(text: &str) -> Result<Self, NvrtcError> {
        let arch = text.trim();
        let arch = arch.strip_prefix("sm_").unwrap_or(arch);
        let letter = arch.chars().last().filter(char::is_ascii_lowercase);
        let digits = &arch[..arch.len() - usize::from(letter.is_some())];
        let number = digits.parse().ok().filter(|n| (10..1000).contains(n));
        let number = number.ok_or_else(|| NvrtcError::Arch {
            text: text.to_owned(),
        })?;
        Ok(Self { number, letter })
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        self.letter.map_or(Ok(()), |letter| write!(f, "{letter}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a process of its own: the environment is all threads'.
    #[cfg(unix)]
    #[test]
    fn a_list_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        const NAME: &str = "nvrtc::arch::tests::a_list_that_is_no_text_is_refused";
        const ALONE: &str = "ARCH_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            let error = Arch::from_env().unwrap_err();
            assert!(error.to_string().contains("90\u{fffd}"), "{error}");
            return;
        }
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact"])
            .env(ALONE, "1")
            .env(ARCHS_VARIABLE, std::ffi::OsStr::from_bytes(b"80,90\xff"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }

    #[test]
    fn architectures_parse_and_print() {
        for (text, printed) in [("90", "90"), (" sm_100a ", "100a"), ("sm_80", "80")] {
            assert_eq!(text.parse::<Arch>().unwrap().to_string(), printed);
        }
        for text in ["", "a", "sm_", "9", "9000", "90aa", "-90", "90é", "ü"] {
            assert!(text.parse::<Arch>().is_err(), "{text}");
        }
    }

    #[test]
    fn fuzz_architecture() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(arch) = String::from_utf8_lossy(bytes).parse::<Arch>() {
                assert_eq!(arch.to_string().parse::<Arch>().unwrap(), arch);
            }
        });
    }
}
