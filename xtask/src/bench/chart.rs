//! The result as an SVG chart: for each row, the ratio to the reference and the bar.

use std::fmt::Write;

use super::row::{Bar, Row, number};

const ROW: usize = 22;
const TOP: usize = 64;
const LABELS: usize = 300;
const PLOT: usize = 420;
const FIGURES: usize = 300;
const WIDTH: usize = LABELS + PLOT + FIGURES;
/// The ratio at the right edge of the plot; larger ratios are clipped and marked.
const EDGE: f64 = 2.0;

const HELD: &str = "#2a9d5c";
const MISSED: &str = "#d1495b";
const PLAIN: &str = "#5c677d";

/// Draws the rows as an SVG image.
pub(super) fn draw(name: &str, rows: &[Row]) -> String {
    let height = TOP + rows.len() * ROW + 24;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"16\" font-weight=\"bold\">bench {}</text>\n\
         <text x=\"12\" y=\"42\" fill=\"#555\">ours as a multiple of the reference in C; the black mark is the bar</text>\n",
        escape(name)
    );
    let bottom = TOP + rows.len() * ROW;
    for tick in [0.0, 0.5, 1.0, 1.5, 2.0] {
        let (x, color) = (position(tick), if tick == 1.0 { "#333" } else { "#ddd" });
        line(
            &mut svg,
            &format!(
                "<line x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"{color}\"/>",
                TOP - 4
            ),
        );
        text(&mut svg, x, TOP - 8, "middle", "#555", &format!("{tick}×"));
    }
    for (index, row) in rows.iter().enumerate() {
        one(&mut svg, row, TOP + index * ROW);
    }
    svg + "</svg>\n"
}

/// Draws one row with its upper edge at `y`.
fn one(svg: &mut String, row: &Row, y: usize) {
    let color = match row.pass() {
        Some(true) => HELD,
        Some(false) => MISSED,
        None => PLAIN,
    };
    let base = y + 15;
    text(
        svg,
        LABELS as f64 - 8.0,
        base,
        "end",
        "#222",
        &format!("{}, {}", row.case, row.unit),
    );
    if let Some(ratio) = row.ratio() {
        let (from, to) = (position(0.0), position(ratio));
        let width = to - from;
        line(
            svg,
            &format!(
                "<rect x=\"{from:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{color}\" fill-opacity=\"0.8\"/>",
                y + 4,
                ROW - 8
            ),
        );
        if ratio > EDGE {
            text(svg, to - 4.0, base, "end", "white", "▶");
        }
    }
    if let Some(limit) = limit(row) {
        let x = position(limit);
        line(
            svg,
            &format!(
                "<rect x=\"{:.1}\" y=\"{}\" width=\"2\" height=\"{}\" fill=\"black\"/>",
                x - 1.0,
                y + 1,
                ROW - 2
            ),
        );
    }
    let figures = match (row.reference, row.ratio()) {
        (Some(reference), Some(ratio)) => {
            format!("{} / {} = {ratio:.3}", number(row.ours), number(reference))
        }
        _ => number(row.ours),
    };
    let bar = row.bar.map_or(String::new(), |bar| format!("  ({bar})"));
    text(
        svg,
        (LABELS + PLOT + 10) as f64,
        base,
        "start",
        color,
        &format!("{figures}{bar}"),
    );
}

/// The bar as a multiple of the reference, if the bar can be expressed as one.
fn limit(row: &Row) -> Option<f64> {
    let reference = row.reference.filter(|reference| *reference > 0.0);
    match row.bar? {
        Bar::Times(limit) | Bar::NotBelow(limit) => Some(limit),
        Bar::Added(more) => reference.map(|reference| (reference + more) / reference),
        Bar::Total(maximum) => reference.map(|reference| maximum / reference),
    }
}

fn position(ratio: f64) -> f64 {
    LABELS as f64 + ratio.clamp(0.0, EDGE) / EDGE * PLOT as f64
}

fn text(svg: &mut String, x: f64, y: usize, anchor: &str, color: &str, content: &str) {
    let content = escape(content);
    line(
        svg,
        &format!(
            "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{color}\">{content}</text>"
        ),
    );
}

fn line(svg: &mut String, element: &str) {
    // Writing to a string cannot fail.
    let _infallible = writeln!(svg, "{element}");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: f64, reference: Option<f64>, bar: Option<Bar>) -> Row {
        Row {
            case: "a < b & c".to_owned(),
            unit: "ns",
            ours,
            reference,
            bar,
        }
    }

    #[test]
    fn row_with_each_verdict_has_its_color() {
        let at_most = Some(Bar::Times(1.25));
        let met = draw("x", &[row(1.0, Some(1.0), at_most)]);
        assert!(met.contains(HELD) && !met.contains(MISSED));
        let missed = draw("x", &[row(9.0, Some(1.0), at_most)]);
        assert!(missed.contains(MISSED) && !missed.contains(HELD));
        let plain = draw("x", &[row(9.0, None, None)]);
        assert!(plain.contains(PLAIN) && !plain.contains(MISSED));
    }

    #[test]
    fn case_with_markup_is_escaped() {
        assert!(draw("x", &[row(1.0, None, None)]).contains("a &lt; b &amp; c"));
    }

    #[test]
    fn bar_of_each_kind_is_drawn_as_a_multiple_of_the_reference() {
        let of = |bar| limit(&row(1.0, Some(100.0), Some(bar)));
        assert_eq!(of(Bar::Added(50.0)), Some(1.5));
        assert_eq!(of(Bar::Total(120.0)), Some(1.2));
        assert_eq!(of(Bar::NotBelow(0.97)), Some(0.97));
        assert_eq!(limit(&row(1.0, Some(0.0), Some(Bar::Total(0.0)))), None);
    }
}
