//! The demo's sequence as an SVG image: a lifeline for each host, an arrow for each frame.

use std::fmt::Write;

use soft_roce::Host;

/// Sizes in pixels of the image's user space.
const WIDTH: usize = 1320;
const TOP: usize = 72;
const ROW: usize = 22;
const LIFELINES: [usize; 2] = [460, 860];

const STYLE: &str = "\
text{font:12px 'DejaVu Sans',Verdana,sans-serif;fill:#222}\
.frame{font-size:11px;fill:#075985}\
.line{stroke:#888;stroke-dasharray:4 4}\
.arrow{stroke:#0369a1;stroke-width:1.5}\
.head{fill:#0369a1}\
.ground{fill:#fff}\
@media (prefers-color-scheme:dark){text{fill:#ddd}.frame{fill:#7dd3fc}.ground{fill:#111}\
.arrow{stroke:#38bdf8}.head{fill:#38bdf8}}";

/// A step of the sequence.
#[derive(Debug)]
enum Step {
    /// A line of a host's program.
    Line(Host, String),
    /// A frame to the other host.
    Frame(Host, String),
}

/// The steps of both hosts, in order.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    headings: [String; 2],
    steps: Vec<Step>,
}

impl Sequence {
    /// Sets the heading of each host.
    pub(super) fn open(&mut self, headings: [String; 2]) {
        self.headings = headings;
    }

    /// Adds a line of a host's program.
    pub(super) fn line(&mut self, host: Host, text: &str) {
        self.steps.push(Step::Line(host, text.to_owned()));
    }

    /// Adds a frame from a host to the other one.
    pub(super) fn frame(&mut self, from: Host, text: &str) {
        self.steps.push(Step::Frame(from, text.to_owned()));
    }

    /// The image.
    pub(super) fn svg(&self) -> String {
        let height = TOP + ROW * (self.steps.len() + 1);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-labelledby=\"title\">\n<title id=\"title\">Messages between two hosts over RDMA</title>\n\
             <style>{STYLE}</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n"
        );
        for (x, heading) in LIFELINES.into_iter().zip(&self.headings) {
            text(&mut svg, x, 28, "middle", "", heading);
            put(
                &mut svg,
                &format!("<path class=\"line\" d=\"M{x} 44V{}\"/>", height - ROW / 2),
            );
        }
        for (index, step) in self.steps.iter().enumerate() {
            step.draw(&mut svg, TOP + index * ROW);
        }
        svg + "</svg>\n"
    }
}

impl Step {
    /// Draws the step with its base line at `y`.
    fn draw(&self, svg: &mut String, y: usize) {
        let [a, b] = LIFELINES;
        match self {
            Self::Line(host, line) if *host == Host::A => text(svg, a - 12, y, "end", "", line),
            Self::Line(_, line) => text(svg, b + 12, y, "start", "", line),
            Self::Frame(from, frame) => {
                let (start, end, tail) = match *from {
                    Host::A => (a, b, b - 8),
                    _ => (b, a, a + 8),
                };
                text(svg, usize::midpoint(a, b), y - 3, "middle", "frame", frame);
                put(
                    svg,
                    &format!("<path class=\"arrow\" d=\"M{start} {}H{tail}\"/>", y + 2),
                );
                let (up, down) = (y - 2, y + 6);
                put(
                    svg,
                    &format!(
                        "<path class=\"head\" d=\"M{end} {}L{tail} {up}V{down}Z\"/>",
                        y + 2
                    ),
                );
            }
        }
    }
}

fn text(svg: &mut String, x: usize, y: usize, anchor: &str, class: &str, text: &str) {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    put(
        svg,
        &format!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ),
    );
}

fn put(svg: &mut String, element: &str) {
    // Writing to a string cannot fail.
    let _infallible = writeln!(svg, "{element}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_has_the_steps_in_order_and_escapes_text() {
        let mut sequence = Sequence::default();
        sequence.open(["host a".to_owned(), "host b".to_owned()]);
        sequence.line(Host::A, "a <message> & more");
        sequence.frame(Host::B, "SEND_ONLY, PSN 7");
        let svg = sequence.svg();
        let line = svg.find("a &lt;message&gt; &amp; more").unwrap();
        let frame = svg.find("SEND_ONLY, PSN 7").unwrap();
        assert!(line < frame, "{svg}");
        let [a, b] = LIFELINES;
        let y = TOP + ROW + 2;
        assert!(
            svg.contains(&format!("M{b} {y}H{}", a + 8)),
            "from right to left: {svg}"
        );
        assert_eq!(svg.matches("<path class=\"head\"").count(), 1);
        assert!(svg.ends_with("</svg>\n"));
    }
}
