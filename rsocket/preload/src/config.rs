//! Rules for the sockets to replace with rsockets.

#![forbid(unsafe_code)]

use libc::c_int;

/// Maximum length of a line in bytes; longer lines are ignored.
const MAX_LINE: usize = 120;

/// Rules of a configuration file; without any, every socket matches.
#[derive(Debug, Default)]
pub(crate) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    /// Prefix of the program's name; empty for any program.
    program: String,
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

impl Rules {
    /// Parses rules, ignoring malformed lines.
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(Rule::parse).collect())
    }

    /// Whether a socket should be an rsocket. Ignores flags in the type; protocol 0 means the default
    /// protocol of the type.
    pub(crate) fn allow(&self, program: &str, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        let protocol = match (protocol, kind) {
            (0, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
            (0, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
            _ => protocol,
        };
        let is = |filter: Option<c_int>, value| filter.is_none_or(|filter| filter == value);
        let program = program.to_lowercase();
        self.0.is_empty()
            || self.0.iter().any(|rule| {
                program.starts_with(&rule.program)
                    && is(rule.domain, domain)
                    && is(rule.kind, kind)
                    && is(rule.protocol, protocol)
            })
    }
}

impl Rule {
    fn parse(line: &str) -> Option<Self> {
        if line.len() >= MAX_LINE || line.trim_start().starts_with('#') {
            return None;
        }
        let mut words = line.split_whitespace();
        let (program, domain, kind, protocol) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        Some(Self {
            program: program.trim_end_matches('*').to_lowercase(),
            domain: number(
                domain,
                &["AF_", "PF_"],
                &[
                    ("INET", libc::AF_INET),
                    ("INET6", libc::AF_INET6),
                    ("IB", libc::AF_IB),
                ],
            )?,
            kind: number(
                kind,
                &["SOCK_"],
                &[("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)],
            )?,
            protocol: number(
                protocol,
                &["IPPROTO_"],
                &[("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)],
            )?,
        })
    }
}

/// Parses a name; `None` inside means any.
fn number(word: &str, prefixes: &[&str], names: &[(&str, c_int)]) -> Option<Option<c_int>> {
    if word == "*" {
        return Some(None);
    }
    let word = word.to_uppercase();
    let prefix = prefixes.iter().find_map(|prefix| word.strip_prefix(prefix));
    let name = prefix.unwrap_or(&word);
    let found = names.iter().find(|(spelling, _)| *spelling == name)?;
    Some(Some(found.1))
}

#[cfg(test)]
mod tests {
    use libc::{
        AF_INET, AF_INET6, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM,
    };

    use super::*;

    #[test]
    fn rules_select_sockets_by_program_and_type() {
        let rules = Rules::parse(
            "# program domain type protocol\n\
             iperf INET STREAM TCP\n\
             Nginx pf_inet6 sock_stream *\n\
             one two three\n\
             five INET STREAM TCP words\n\
             bad INET SEQPACKET TCP\n",
        );
        assert_eq!(rules.0.len(), 2);
        assert!(rules.allow("iperf3", AF_INET, SOCK_STREAM, 0));
        assert!(rules.allow("IPERF", AF_INET, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP));
        assert!(!rules.allow("iper", AF_INET, SOCK_STREAM, 0));
        assert!(!rules.allow("iperf3", AF_INET6, SOCK_STREAM, 0));
        assert!(!rules.allow("iperf3", AF_INET, SOCK_DGRAM, 0));
        assert!(rules.allow("nginx", AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
        assert!(!rules.allow("nginx", AF_INET, SOCK_STREAM, 0));
    }

    #[test]
    fn empty_rules_allow_every_socket() {
        for text in ["", "# nothing\n\n", &"x".repeat(500)] {
            assert!(Rules::parse(text).allow("any", AF_INET, SOCK_STREAM, 0));
        }
        let long = format!("p INET STREAM TCP{}", " ".repeat(MAX_LINE));
        assert!(Rules::parse(&long).0.is_empty());
        let any = Rules::parse("* * * *");
        assert!(any.allow("x", AF_INET6, SOCK_DGRAM, 0));
        let other = Rules::parse("other * * *");
        assert!(!other.allow("x", AF_INET, SOCK_STREAM, 0));
    }
}
