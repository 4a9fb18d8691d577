//! Documents that quote programs: each Rust block must be part of a source.

/// The lines of a text, without indentation.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).collect()
}

/// Checks that each `rust,ignore` block of the document is part of a source. Returns the number of blocks.
///
/// # Panics
/// If a block is in no source.
pub(crate) fn check(document: &str, sources: &[&str]) -> usize {
    let sources: Vec<_> = sources.iter().map(|source| lines(source)).collect();
    let blocks = document.split("```rust,ignore\n").skip(1);
    let quotations: Vec<_> = blocks
        .map(|block| lines(block.split("```").next().unwrap_or_default()))
        .collect();
    for quotation in &quotations {
        let is_quoted = |source: &Vec<&str>| {
            source
                .windows(quotation.len())
                .any(|window| window == quotation)
        };
        assert!(
            sources.iter().any(is_quoted),
            "in no source:\n{}",
            quotation.join("\n")
        );
    }
    quotations.len()
}

/// The tutorial of the key-value store.
mod tutorial {
    const TUTORIAL: &str = include_str!("kv_store/README.md");

    const SOURCES: [&str; 7] = [
        include_str!("kv_store/src/bucket.rs"),
        include_str!("kv_store/src/client.rs"),
        include_str!("kv_store/src/exchange.rs"),
        include_str!("kv_store/src/bin/kv-server.rs"),
        include_str!("kv_store/src/message.rs"),
        include_str!("kv_store/src/server.rs"),
        include_str!("kv_store/src/slot.rs"),
    ];

    #[test]
    fn every_quotation_of_the_tutorial_is_in_the_sources() {
        let count = super::check(TUTORIAL, &SOURCES);
        assert!(count >= 7, "{count} quotations");
    }
}

/// The trace of a connection in the documentation of `cm`.
mod trace {
    /// The lines of the trace, which a test of the tutorial's project compares with a client's.
    fn trace(document: &str) -> Vec<&str> {
        let lines = document.lines().map(|line| line.trim_start_matches("//! "));
        lines.filter(|line| line.contains(" cm_id{key=1")).collect()
    }

    #[test]
    fn trace_in_the_documentation_of_cm_is_the_tutorials() {
        let of_the_tutorial = trace(include_str!("kv_store/README.md"));
        assert!(of_the_tutorial.len() >= 5, "{of_the_tutorial:?}");
        assert_eq!(trace(include_str!("../cm/src/lib.rs")), of_the_tutorial);
    }
}

/// The chapter "Test your protocol".
mod chapter {
    const CHAPTER: &str = include_str!("../softnic/GUIDE.md");

    const SOURCES: [&str; 6] = [
        include_str!("kv_store/tests/softnic/store.rs"),
        include_str!("../softnic/tests/failures/limits.rs"),
        include_str!("../softnic/tests/failures/objects.rs"),
        include_str!("../softnic/tests/guide.rs"),
        include_str!("../softnic/tests/scripted.rs"),
        include_str!("../softnic/tests/tokio_clock.rs"),
    ];

    #[test]
    fn every_quotation_of_the_chapter_is_in_a_test() {
        let count = super::check(CHAPTER, &SOURCES);
        assert_eq!(CHAPTER.matches("```rust").count(), count);
        assert!(count >= 6, "{count} quotations");
    }
}
