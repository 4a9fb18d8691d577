//! The first build of the tests, which takes minutes.

use std::num::NonZero;
use std::path::Path;
use std::{fs, thread};

/// Time of the build on one processor, in minutes.
const MINUTES: usize = 12;

/// Name of a test program, without the hash.
const PROGRAM: &str = "swarm-";

/// Expected time of the build in the target folder, in minutes; `None` if the tests have been built there before.
pub(super) fn minutes(target: &Path) -> Option<usize> {
    let built = fs::read_dir(target.join("debug/deps"));
    let mut programs = built.into_iter().flatten().flatten();
    let is_built = programs.any(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(PROGRAM)
    });
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    (!is_built).then_some(MINUTES.div_ceil(processors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_build_has_an_expected_time() {
        let folder = tempfile::tempdir().unwrap();
        assert!(minutes(folder.path()).is_some_and(|minutes| minutes > 0));
        let programs = folder.path().join("debug/deps");
        fs::create_dir_all(&programs).unwrap();
        fs::write(programs.join("libserde-1.rlib"), "").unwrap();
        assert!(minutes(folder.path()).is_some());
        fs::write(programs.join(format!("{PROGRAM}0123")), "").unwrap();
        assert_eq!(minutes(folder.path()), None);
    }
}
