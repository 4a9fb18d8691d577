//! The order of the frames of a link.

use std::{collections::BTreeMap, time::Duration};

/// Arrivals in the order of departure: a frame with a shorter delay than an earlier one of its link arrives with that one.
#[derive(Default)]
pub(super) struct LinkOrder {
    /// Time of the last arrival so far, by link.
    last: BTreeMap<(usize, usize), Duration>,
}

impl LinkOrder {
    /// Returns the delay of a frame that departs now and would arrive after `delay`: zero if no earlier frame is on the way.
    pub(super) fn delay(
        &mut self,
        link: (usize, usize),
        now: Duration,
        delay: Duration,
    ) -> Duration {
        let last = self.last.entry(link).or_default();
        *last = (*last).max(now + delay);
        *last - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_arrives_no_earlier_than_one_before_it_on_its_link() {
        let us = Duration::from_micros;
        let mut order = LinkOrder::default();
        assert_eq!(order.delay((0, 1), us(10), us(50)), us(50));
        assert_eq!(order.delay((0, 1), us(20), us(5)), us(40));
        assert_eq!(order.delay((1, 0), us(20), us(5)), us(5), "another link");
        assert_eq!(order.delay((0, 1), us(30), us(0)), us(30));
        assert_eq!(
            order.delay((0, 1), us(60), us(0)),
            us(0),
            "none is on the way"
        );
        assert_eq!(order.delay((0, 1), us(70), us(8)), us(8));
    }
}
