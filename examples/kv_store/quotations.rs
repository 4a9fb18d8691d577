//! The tutorial quotes the program: each Rust block in the text must be part of the sources.

const TUTORIAL: &str = include_str!("README.md");

const SOURCES: [&str; 7] = [
    include_str!("bucket.rs"),
    include_str!("client.rs"),
    include_str!("exchange.rs"),
    include_str!("kv_server.rs"),
    include_str!("message.rs"),
    include_str!("server.rs"),
    include_str!("slot.rs"),
];

/// The lines of a text, without indentation.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).collect()
}

#[test]
fn every_quotation_is_in_the_sources() {
    let sources = SOURCES.map(lines);
    let blocks = TUTORIAL.split("```rust,ignore\n").skip(1);
    let quotations: Vec<_> = blocks
        .map(|block| lines(block.split("```").next().unwrap_or_default()))
        .collect();
    assert!(quotations.len() >= 7, "{quotations:?}");
    for quotation in quotations {
        let is_quoted = |source: &Vec<&str>| {
            source
                .windows(quotation.len())
                .any(|window| window == quotation)
        };
        assert!(
            sources.iter().any(is_quoted),
            "not in the sources:\n{}",
            quotation.join("\n")
        );
    }
}
