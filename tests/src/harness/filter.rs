// SPDX-License-Identifier: MIT
//! Which tests a command line selects.

use super::options::Options;
use super::test::Test;

/// A filter as upstream writes it: a substring of `Suite.Test`, or `-` and a comma list of
/// substrings that exclude. Those that select may be a list, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// Every name.
    #[default]
    All,
    /// Names that contain one of the texts.
    Contains(Vec<String>),
    /// Names that contain none of the texts.
    Excludes(Vec<String>),
}

impl Filter {
    /// Reads the text of `--filter`.
    pub fn parse(text: &str) -> Self {
        let texts = |list: &str| -> Vec<String> {
            list.split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()
        };
        match text.strip_prefix('-') {
            Some(list) => Self::Excludes(texts(list)),
            None if text.is_empty() => Self::All,
            None => Self::Contains(texts(text)),
        }
    }

    /// Whether a test of this name runs.
    pub fn admits(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Contains(list) => list.iter().any(|text| name.contains(text.as_str())),
            Self::Excludes(list) => !list.iter().any(|text| name.contains(text.as_str())),
        }
    }
}

/// Whether the options select the test: by name, backend, ranks, and by whether it measures.
pub fn selected(options: &Options, test: &Test) -> bool {
    let backend = options.backend.as_ref().is_none_or(|text| {
        let name = test.backend.map(|backend| backend.name);
        name.is_some_and(|name| name.contains(text.as_str()))
    });
    let kind = if test.perf {
        !options.exclude_perf_tests
    } else {
        !options.only_perf_tests
    };
    let ranks = test.max_ranks > options.ranks_above;
    backend && kind && ranks && Filter::parse(&options.filter).admits(&test.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_text_selects_names_that_contain_it() {
        let filter = Filter::parse("PingPong");
        assert!(filter.admits("PortChannelOneToOneTest.PingPongEthernet"));
        assert!(!filter.admits("BootstrapTest.WithId"));
        let filter = Filter::parse("PingPong, Bootstrap");
        assert!(filter.admits("PortChannelOneToOneTest.PingPongEthernet"));
        assert!(filter.admits("BootstrapTest.WithId"));
        assert!(!filter.admits("CommunicatorTest.BasicWrite"));
    }

    #[test]
    fn a_leading_dash_excludes_each_text_of_the_list() {
        let filter = Filter::parse("-PingPong, Bootstrap,");
        assert!(!filter.admits("PortChannelOneToOneTest.PingPongEthernet"));
        assert!(!filter.admits("BootstrapTest.WithId"));
        assert!(filter.admits("CommunicatorTest.BasicWrite"));
    }

    #[test]
    fn an_empty_filter_and_an_empty_exclusion_select_all() {
        assert!(Filter::parse("").admits("A.B"));
        assert!(Filter::parse("-").admits("A.B"));
    }
}
