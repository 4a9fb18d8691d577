//! The transcripts of the README and of the book's first page, run in new crates, and the README's quotations.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use super::PROGRAM;

const README: &str = include_str!("../../README.md");
const START: &str = include_str!("../../../book/start.md");

/// The code blocks of a document, each with its language.
fn code(document: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let block = lines.by_ref().take_while(|line| *line != "```");
            blocks.push((language, block.map(|line| format!("{line}\n")).collect()));
        }
    }
    blocks
}

/// The code blocks of a language in the README.
fn blocks(language: &str) -> Vec<String> {
    let blocks = code(README).into_iter();
    let matching = blocks.filter(|(of, _)| *of == language);
    matching.map(|(_, block)| block).collect()
}

/// The commands of a transcript, each with the output shown.
fn commands(transcript: &str) -> Vec<(String, Vec<&str>)> {
    let mut commands: Vec<(String, Vec<&str>)> = Vec::new();
    for line in transcript.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => commands.push((command.to_owned(), Vec::new())),
            None => commands.last_mut().unwrap().1.push(line),
        }
    }
    commands
}

/// Whether `printed` is `shown`, where `...` as a line stands for any lines, and at the end of a line for any text.
fn agrees(printed: &[&str], shown: &[&str]) -> bool {
    match shown {
        [] => printed.is_empty(),
        ["...", rest @ ..] => {
            (0..=printed.len()).any(|left_out| agrees(&printed[left_out..], rest))
        }
        [line, rest @ ..] => printed.split_first().is_some_and(|(first, printed)| {
            let is_equal = match line.strip_suffix("...") {
                Some(begin) => first.starts_with(begin),
                None => first == line,
            };
            is_equal && agrees(printed, rest)
        }),
    }
}

/// Runs a command in `folder`, and returns standard output.
fn output(command: &str, folder: &Path) -> String {
    let programs = Path::new(PROGRAM).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .current_dir(folder)
        .env("PATH", path)
        .env("CARGO_NET_OFFLINE", "true")
        .env("CARGO_PROFILE_DEV_DEBUG", "false");
    for name in ["CARGO_TARGET_DIR", "RUSTFLAGS", "CARGO_MANIFEST_DIR"] {
        shell.env_remove(name);
    }
    let output = shell
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the commands of a transcript in `folder`, and compares their output with the output shown.
fn follow(transcript: &str, folder: &Path) {
    for (command, mut shown) in commands(transcript) {
        let printed = output(&command, folder);
        let mut printed: Vec<&str> = printed.lines().collect();
        // Blank lines at the beginning and the end are layout.
        for lines in [&mut printed, &mut shown] {
            while lines.last().is_some_and(|line| line.is_empty()) {
                lines.pop();
            }
        }
        assert!(
            agrees(&by_host(printed.clone()), &by_host(shown.clone())),
            "{command}\nprinted {printed:#?}\nshown {shown:#?}"
        );
    }
}

/// The host of a line such as `b| HELLO`.
fn host(line: &str) -> Option<&str> {
    let (host, _) = line.split_once("| ")?;
    let is_letter = host.len() == 1 && host.starts_with(|c: char| c.is_ascii_lowercase());
    is_letter.then_some(host)
}

/// Groups the lines by host, each host's in their order, because the order between hosts depends on the load of the machine.
///
/// Output with other lines is left as it is.
fn by_host(mut lines: Vec<&str>) -> Vec<&str> {
    if lines.iter().all(|line| host(line).is_some()) {
        lines.sort_by_key(|line| host(line));
    }
    lines
}

/// Writes a block whose first line is a comment with the file's name.
fn write_file(block: &str, folder: &Path) {
    let (first, _) = block.split_once('\n').unwrap();
    let path = folder.join(first.trim_start_matches(['/', '#', ' ']));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, block).unwrap();
}

#[test]
fn transcripts_of_the_readme_are_true() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    output("cargo new --quiet --vcs none --lib hello", folder.path());
    let hello = folder.path().join("hello");
    let (sources, transcripts) = (blocks("rust,ignore"), blocks("console"));
    assert_eq!((sources.len(), transcripts.len()), (1, 3));
    write_file(&sources[0], &hello);
    for transcript in transcripts {
        follow(&transcript, &hello);
    }
}

/// The project is made, built, tested and run by the page alone.
#[test]
fn project_from_an_empty_folder_works_as_the_page_shows() {
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme");
    let hello = project.join("hello");
    fs::create_dir_all(&hello).unwrap();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned();
    // `cargo init` adds a package to a workspace in a folder above, unless a nearer one excludes the package. The
    // checkout is a workspace itself.
    let manifest = "[workspace]\nexclude = [\"hello\", \"rdma\"]\n";
    fs::write(project.join("Cargo.toml"), manifest).unwrap();
    if !project.join("rdma").exists() {
        symlink(&checkout, project.join("rdma")).unwrap();
    }
    // Empty, except for compiled crates of an earlier run, and the versions present on this machine.
    for entry in fs::read_dir(&hello).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true if entry.file_name() == "target" => {}
            true => fs::remove_dir_all(entry.path()).unwrap(),
            false => fs::remove_file(entry.path()).unwrap(),
        }
    }
    fs::copy(checkout.join("Cargo.lock"), hello.join("Cargo.lock")).unwrap();
    let blocks = code(START);
    assert_eq!(blocks.len(), 9);
    for (language, block) in blocks {
        match language {
            "console" => follow(&block, &hello),
            // The command that installs `cargo soft-roce`: this test has the program in its PATH.
            "sh" => {}
            _ => write_file(&block, &hello),
        }
    }
}

#[test]
fn example_of_the_readme_is_a_test() {
    let tests = include_str!("library.rs");
    for example in blocks("rust,no_run") {
        let test = example.split_once("\n\n").unwrap().1;
        assert!(tests.contains(test), "{test}");
    }
}

#[test]
fn lines_of_two_hosts_agree_in_any_order_between_hosts() {
    let agree = |printed: &[&str], shown: &[&str]| {
        agrees(&by_host(printed.to_vec()), &by_host(shown.to_vec()))
    };
    assert!(agree(
        &["c| x y", "b| 1", "b| 2"],
        &["b| 1", "b| 2", "c| x ..."]
    ));
    assert!(!agree(
        &["c| x y", "b| 2", "b| 1"],
        &["b| 1", "b| 2", "c| x ..."]
    ));
    assert!(!agree(&["b| 1", "c| x y"], &["b| 1", "b| 2", "c| x ..."]));
    // Lines of the command itself are compared in their order.
    assert!(!agree(&["x", "b| 1"], &["b| 1", "x"]));
}

#[test]
fn elided_lines_agree_with_any_others() {
    assert!(agrees(&["a", "b", "c"], &["...", "c"]));
    assert!(agrees(&["a", "b c"], &["a", "b..."]));
    assert!(agrees(&["a"], &["a", "..."]));
    assert!(!agrees(&["a", "b"], &["a"]));
    assert!(!agrees(&["a"], &["...", "b"]));
    assert!(!agrees(&["b"], &["a..."]));
}
