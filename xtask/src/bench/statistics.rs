//! One number for many.

/// The middle of the values; the mean of the two in the middle, if their number is even.
///
/// Of no values there is none.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some((sorted[middle - 1] + upper) / 2.0)
}

/// The mean of the middle half of the values: of many it tells as much as the mean does, and what is far off does
/// not matter.
///
/// Of no values there is none.
pub(super) fn middle(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    let half = sorted.get(quarter..sorted.len() - quarter)?;
    (!half.is_empty()).then(|| half.iter().sum::<f64>() / half.len() as f64)
}

/// Of no values there is none.
pub(super) fn least(values: &[f64]) -> Option<f64> {
    values.iter().copied().min_by(f64::total_cmp)
}

/// Of no values there is none.
pub(super) fn greatest(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 9.0, 2.0]), Some(3.0));
    }

    #[test]
    fn outer_quarters_do_not_matter() {
        assert_eq!(middle(&[]), None);
        assert_eq!(middle(&[7.0]), Some(7.0));
        assert_eq!(middle(&[1.0, 2.0, 6.0]), Some(3.0));
        assert_eq!(middle(&[900.0, 2.0, 4.0, -900.0]), Some(3.0));
    }
}
