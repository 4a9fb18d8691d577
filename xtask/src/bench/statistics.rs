//! Averages.

/// The median; with an even number of values, the mean of the middle two. `None` without values.
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

/// The interquartile mean: the mean of the middle half, robust against outliers. `None` without values.
pub(super) fn middle(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    let half = sorted.get(quarter..sorted.len() - quarter)?;
    (!half.is_empty()).then(|| half.iter().sum::<f64>() / half.len() as f64)
}

/// The smallest value. `None` without values.
pub(super) fn least(values: &[f64]) -> Option<f64> {
    values.iter().copied().min_by(f64::total_cmp)
}

/// The largest value. `None` without values.
pub(super) fn greatest(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_values_is_the_middle_one() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 9.0, 2.0]), Some(3.0));
    }

    #[test]
    fn middle_of_values_ignores_the_outer_quarters() {
        assert_eq!(middle(&[]), None);
        assert_eq!(middle(&[7.0]), Some(7.0));
        assert_eq!(middle(&[1.0, 2.0, 6.0]), Some(3.0));
        assert_eq!(middle(&[900.0, 2.0, 4.0, -900.0]), Some(3.0));
    }
}
