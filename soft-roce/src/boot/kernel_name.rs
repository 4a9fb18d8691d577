//! Names of kernels: a series, or the newest one.

use std::fmt;
use std::str::FromStr;

/// A kernel of Debian's packages, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KernelName {
    /// The latest release of a series, such as `6.12`.
    Series(String),
    /// The kernel of Debian unstable.
    Newest,
}

impl KernelName {
    /// Whether a kernel with this release, as in `uname -r`, has the name. Any release may be the newest.
    pub(crate) fn matches(&self, release: &str) -> bool {
        match self {
            Self::Series(series) => release
                .strip_prefix(series.as_str())
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit())),
            Self::Newest => true,
        }
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Series(series) => series,
            Self::Newest => "newest",
        })
    }
}

impl FromStr for KernelName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_number = |part: &str| {
            (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        match text.split_once('.') {
            _ if text == "newest" => Ok(Self::Newest),
            Some((major, minor)) if is_number(major) && is_number(minor) => {
                Ok(Self::Series(text.to_owned()))
            }
            _ => Err(format!(
                "`{text}` is no kernel: give a series such as 6.12, or `newest`"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_a_series_or_the_newest() {
        for text in ["6.1", "6.12", "newest"] {
            assert_eq!(text.parse::<KernelName>().unwrap().to_string(), text);
        }
        for text in ["", "6", "6.12.1", "6.x", "/boot/vmlinuz", "latest"] {
            let error = text.parse::<KernelName>().unwrap_err();
            assert!(error.contains("6.12"), "{error}");
        }
    }

    #[test]
    fn series_matches_its_releases_only() {
        let series = KernelName::Series("6.1".to_owned());
        assert!(series.matches("6.1.0-56-amd64") && series.matches("6.1-rc1"));
        assert!(!series.matches("6.12.1-rdma") && !series.matches("5.6.1"));
        assert!(KernelName::Newest.matches("7.2.13-rdma"));
    }
}
