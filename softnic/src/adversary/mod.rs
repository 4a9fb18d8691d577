//! The adversary: a device that uses the freedoms of the standard, by seed.
//!
//! A [`Rule`] names a freedom. Each decision depends on the seed, the rule, and the number of the rule's decision on the
//! device.

#![forbid(unsafe_code)]

mod rule;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

pub use rule::{Rule, RuleClass, UnknownRule};

use crate::{failure::Call, mix::mix};

/// Maximum delay of a destroying call.
const MAX_TEARDOWN_US: u64 = 2000;

/// One call in this number is refused.
const REFUSED: u64 = 8;

/// Error numbers of refused creations.
const REFUSALS: [i32; 3] = [libc::ENOMEM, libc::EAGAIN, libc::ENOSPC];

/// A set of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules(u64);

impl Rules {
    /// All rules by which no call fails.
    pub(crate) fn without_refusals() -> Self {
        let rules = Rule::ALL.iter().filter(|rule| !rule.refuses_calls());
        rules.fold(Self::default(), |rules, rule| rules.with(*rule))
    }

    pub(crate) fn with(self, rule: Rule) -> Self {
        Self(self.0 | 1 << rule as u32)
    }

    pub(crate) fn has(self, rule: Rule) -> bool {
        self.0 >> rule as u32 & 1 == 1
    }
}

/// Rules and their seed, as in `SOFTNIC_ADVERSARY`: `7`, or `7:stale-fields,keys`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdversaryOptions {
    pub(crate) seed: u64,
    pub(crate) rules: Rules,
}

impl AdversaryOptions {
    /// Parses the value of the environment variable.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (seed, rules) = match text.split_once(':') {
            Some((seed, names)) => {
                let mut rules = Rules::default();
                for name in names.split(',') {
                    rules = rules.with(
                        name.parse()
                            .map_err(|error: UnknownRule| error.to_string())?,
                    );
                }
                (seed, rules)
            }
            None => (text, Rules::without_refusals()),
        };
        let seed = seed.parse().map_err(|_| {
            format!("`{seed}` is no seed: use a number, such as 7 or 7:stale-fields")
        })?;
        Ok(Self { seed, rules })
    }
}

/// The rules by which devices have decided otherwise than kind ones, and how to repeat them; `None` without such a decision.
pub(crate) fn used_rules(devices: &[&Adversary], seed: u64) -> Option<String> {
    let is_used = |rule: &&Rule| devices.iter().any(|device| device.is_used(**rule));
    let used: Vec<_> = Rule::ALL.iter().filter(is_used).collect();
    if used.is_empty() {
        return None;
    }
    let names: Vec<_> = used.iter().map(|rule| rule.name()).collect();
    let texts = used
        .iter()
        .map(|rule| format!("{rule} ({}: {})", rule.class(), rule.source()));
    let texts: Vec<_> = texts.collect();
    Some(format!(
        "rules used by the devices: {}; repeat them with SOFTNIC_ADVERSARY={seed}:{}",
        texts.join(", "),
        names.join(",")
    ))
}

/// The decisions of one device.
#[derive(Debug)]
pub(crate) struct Adversary {
    seed: u64,
    rules: Rules,
    /// Number of decisions of each rule.
    decisions: [AtomicU64; Rule::ALL.len()],
}

impl Default for Adversary {
    fn default() -> Self {
        Self::new(AdversaryOptions::default(), 0)
    }
}

impl Adversary {
    /// Creates the adversary of a host.
    pub(crate) fn new(options: AdversaryOptions, host: u64) -> Self {
        Self {
            seed: mix(options.seed) ^ mix(host),
            rules: options.rules,
            decisions: Default::default(),
        }
    }

    /// Whether the device has no rule.
    #[inline]
    pub(crate) fn is_kind(&self) -> bool {
        self.rules == Rules::default()
    }

    #[inline]
    pub(crate) fn has(&self, rule: Rule) -> bool {
        self.rules.has(rule)
    }

    /// Whether a decision by the rule has been made.
    pub(crate) fn is_used(&self, rule: Rule) -> bool {
        self.decisions[rule as usize].load(Ordering::Relaxed) > 0
    }

    /// A number below `count`, by the seed. Without the rule 0, which stands for the behaviour of a kind device.
    #[inline]
    pub(crate) fn choose(&self, rule: Rule, count: u64) -> u64 {
        if !self.has(rule) {
            return 0;
        }
        self.number(rule) % count
    }

    /// A pseudorandom number for a decision by a rule.
    pub(crate) fn number(&self, rule: Rule) -> u64 {
        let decision = self.decisions[rule as usize].fetch_add(1, Ordering::Relaxed);
        mix(mix(self.seed ^ mix(rule as u64)) ^ decision)
    }

    /// A delay of 1 to `max_us` microseconds in half of the cases; none without the rule.
    pub(crate) fn delay(&self, rule: Rule, max_us: u64) -> Option<Duration> {
        let delays = self.choose(rule, 2) == 1;
        delays.then(|| Duration::from_micros(1 + self.number(rule) % max_us))
    }

    /// Refuses or delays a call of the program.
    pub(crate) fn attempt(&self, call: Call) -> Result<(), i32> {
        if self.has(Rule::Refusal) && call.creates() && self.choose(Rule::Refusal, REFUSED) == 1 {
            let index = self.choose(Rule::Refusal, REFUSALS.len() as u64);
            let index = usize::try_from(index).unwrap_or(0);
            return Err(REFUSALS[index]);
        }
        if self.has(Rule::SlowTeardown) && call.destroys() {
            let micros = self.choose(Rule::SlowTeardown, MAX_TEARDOWN_US);
            thread::sleep(Duration::from_micros(micros));
        }
        Ok(())
    }

    /// The error number of a failed posting function.
    pub(crate) fn posting_errno(&self, errno: i32) -> i32 {
        if self.choose(Rule::ErrnoSign, 2) == 1 {
            -errno
        } else {
            errno
        }
    }

    /// Whether a list of requests fails before a request that is not the first.
    pub(crate) fn fails_in_list(&self) -> bool {
        self.choose(Rule::Batch, REFUSED) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_those_of_seed_host_and_rule() {
        let decisions = |seed, host, rule| -> Vec<u64> {
            let rules = Rules::without_refusals();
            let adversary = Adversary::new(AdversaryOptions { seed, rules }, host);
            (0..100).map(|_| adversary.choose(rule, 3)).collect()
        };
        let first = decisions(7, 0, Rule::StaleFields);
        assert_eq!(first, decisions(7, 0, Rule::StaleFields));
        assert_ne!(first, decisions(8, 0, Rule::StaleFields));
        assert_ne!(first, decisions(7, 1, Rule::StaleFields));
        assert_ne!(first, decisions(7, 0, Rule::FlushOrder));
        for choice in 0..3 {
            let count = first.iter().filter(|chosen| **chosen == choice).count();
            assert!((20..50).contains(&count), "{choice}: {count}");
        }
    }

    #[test]
    fn device_without_a_rule_is_kind() {
        let rules = Rules::default().with(Rule::Keys);
        let adversary = Adversary::new(AdversaryOptions { seed: 7, rules }, 0);
        assert!((0..100).all(|_| adversary.choose(Rule::StaleFields, 3) == 0));
        assert!(adversary.has(Rule::Keys));
        assert_eq!(Adversary::default().choose(Rule::Keys, 3), 0);
    }

    #[test]
    fn variable_names_the_seed_and_rules() {
        let all = AdversaryOptions::parse("7").unwrap();
        assert_eq!((all.seed, all.rules), (7, Rules::without_refusals()));
        assert!(!all.rules.has(Rule::Refusal));
        let two = AdversaryOptions::parse("9:keys,batch").unwrap();
        let rules = Rules::default().with(Rule::Keys).with(Rule::Batch);
        assert_eq!((two.seed, two.rules), (9, rules));
        for (text, expected) in [
            ("seven", "`seven` is no seed"),
            (
                "7:stale",
                "no rule is named `stale`: use one of stale-fields, ",
            ),
            ("7:", "no rule is named ``"),
        ] {
            let error = AdversaryOptions::parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn names_of_rules_are_parsed() {
        for rule in Rule::ALL {
            assert_eq!(rule.name().parse(), Ok(*rule));
            assert!(rule.source().len() > 4, "{rule}");
        }
    }
}
