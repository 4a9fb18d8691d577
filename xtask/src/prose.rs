//! Words that comments, documents and names of tests do without: persons and pronouns in the place of nouns,
//! and everyday verbs in the place of the field's terms.

use std::collections::HashSet;

use crate::test_names;

/// Lines with a phrase that the rules forbid: the file, a part of the line, and the reason.
pub(crate) const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// A sequence of words, and the advice. The last word of a sequence may be a choice.
struct Rule {
    words: &'static [&'static [&'static str]],
    advice: &'static str,
}

const PERSON: &[&str] = &[
    "who",
    "whoever",
    "whom",
    "somebody",
    "nobody",
    "anybody",
    "everybody",
];
const TELL: &[&str] = &[
    "tell", "tells", "told", "say", "says", "said", "hear", "hears", "heard",
];
const HEADLESS: &[&str] = &["what", "whatever"];
const SIGNALLED: &[&str] = &["signalled", "unsignalled", "signalling"];
const ANNOUNCE: &[&str] = &["announce", "announces", "announced", "announcement"];

const RULES: [Rule; 9] = [
    Rule {
        words: &[PERSON],
        advice: "name the agent by its noun: the caller, the peer, the device",
    },
    Rule {
        words: &[HEADLESS],
        advice: "name the thing by its noun, not by a clause without one",
    },
    Rule {
        words: &[&["those", "these", "all"], &["that", "which", "who"]],
        advice: "name the things by their noun, not by a clause without one",
    },
    Rule {
        words: &[&["so"], &["many", "long", "often", "few"]],
        advice: "name the bound: maximum number of, timeout for, interval between",
    },
    Rule {
        words: &[TELL],
        advice: "use the field's term: report, return, notify, receive, distinguish",
    },
    Rule {
        words: &[ANNOUNCE],
        advice: "use the field's term: notify, advertise",
    },
    Rule {
        words: &[SIGNALLED],
        advice: "one spelling: signaled, unsignaled",
    },
    Rule {
        words: &[&["let", "lets"], &["go"]],
        advice: "use the field's term: release, destroy",
    },
    Rule {
        words: &[&["signs"], &["of"], &["life"]],
        advice: "use the field's term: keepalive probes, pings",
    },
];

/// A word of a text.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    /// In lower case.
    text: String,
    line: usize,
    /// A sentence or a clause ends after the word.
    ends: bool,
}

/// Complains about comments, documents and test names of a file. Adds the exceptions used to `used`.
pub(crate) fn check(name: &str, text: &str, used: &mut HashSet<usize>) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let prose = if has_extension(name, "md") {
        document(&lines)
    } else {
        comments(&lines)
    };
    let mut found = violations(&words(&prose));
    if has_extension(name, "rs") {
        for test in test_names::in_file(text) {
            let words = test.name.split('_').map(|part| Word {
                text: part.to_lowercase(),
                line: test.line,
                ends: false,
            });
            found.extend(violations(&words.collect::<Vec<_>>()));
        }
    }
    let mut complaints = Vec::new();
    for (line, phrase, advice) in found {
        let text = lines[line - 1];
        let exception = EXCEPTIONS
            .iter()
            .position(|(file, part, _)| *file == name && text.contains(part));
        if let Some(exception) = exception {
            used.insert(exception);
        } else {
            complaints.push(format!("{name}:{line}: `{phrase}`: {advice}"));
        }
    }
    complaints
}

/// Complains about exceptions without a violation.
pub(crate) fn unused_exceptions(used: &HashSet<usize>) -> Vec<String> {
    EXCEPTIONS
        .iter()
        .enumerate()
        .filter(|(index, _)| !used.contains(index))
        .map(|(_, (file, part, _))| format!("{file}: no violation on a line with `{part}`"))
        .collect()
}

fn has_extension(name: &str, extension: &str) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, end)| end == extension)
}

/// The comments of Rust code, by line number. Code blocks in documentation are left out.
fn comments<'t>(lines: &[&'t str]) -> Vec<(usize, &'t str)> {
    let mut prose = Vec::new();
    let mut is_code = false;
    for (index, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let Some(comment) = trimmed.strip_prefix("//") else {
            is_code = false;
            // After an odd number of quotation marks, the slashes are in a string.
            let trailing = line.rsplit_once(" // ");
            if let Some((_, comment)) = trailing.filter(|(code, _)| !is_in_string(code)) {
                prose.push((index + 1, comment));
            }
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']);
        if comment.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.push((index + 1, comment));
        }
    }
    prose
}

/// Whether the end of the code is inside of a string.
fn is_in_string(code: &str) -> bool {
    code.replace("\\\"", "").matches('"').count() % 2 == 1
}

/// The text of a document, by line number, without code blocks.
fn document<'t>(lines: &[&'t str]) -> Vec<(usize, &'t str)> {
    let mut is_code = false;
    let numbered = lines.iter().enumerate();
    numbered
        .filter_map(|(index, line)| {
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
                return None;
            }
            (!is_code).then_some((index + 1, *line))
        })
        .collect()
}

/// The words of a text. Quotations in backticks or quotation marks are left out, and count as a word without rule.
fn words(prose: &[(usize, &str)]) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut quote = None;
    let mut last_line = 0;
    for &(line, text) in prose {
        // A block of comments ends where the line numbers have a gap, and a paragraph at an empty line.
        if line != last_line + 1 || text.trim().is_empty() {
            quote = None;
            end(&mut words);
        }
        last_line = line;
        let mut is_inside = false;
        for c in text.chars() {
            if let Some(mark) = quote {
                if c == mark {
                    quote = None;
                }
                continue;
            }
            let is_letter = c.is_alphanumeric() || c == '\'' || c == '-';
            if is_letter {
                if !is_inside {
                    words.push(Word {
                        text: String::new(),
                        line,
                        ends: false,
                    });
                }
                if let Some(word) = words.last_mut() {
                    word.text.extend(c.to_lowercase());
                }
            } else if matches!(c, '`' | '"') {
                quote = Some(c);
                words.push(Word {
                    text: String::new(),
                    line,
                    ends: false,
                });
            } else if !c.is_whitespace() && !matches!(c, '*' | '[' | ']') {
                end(&mut words);
            }
            is_inside = is_letter;
        }
    }
    words
}

/// Ends the clause after the last word.
fn end(words: &mut [Word]) {
    if let Some(word) = words.last_mut() {
        word.ends = true;
    }
}

/// The violations among words: the line, the phrase, and the advice.
fn violations(words: &[Word]) -> Vec<(usize, String, &'static str)> {
    let mut found = Vec::new();
    for start in 0..words.len() {
        for rule in &RULES {
            let Some(phrase) = words.get(start..start + rule.words.len()) else {
                continue;
            };
            let matches = phrase.iter().zip(rule.words).all(|(word, choice)| {
                let text = word.text.strip_suffix("'s").unwrap_or(&word.text);
                choice.contains(&text)
            });
            let is_split = phrase[..phrase.len() - 1].iter().any(|word| word.ends);
            if !matches || is_split || is_comparison(phrase, words.get(start + phrase.len())) {
                continue;
            }
            let texts: Vec<&str> = phrase.iter().map(|word| word.text.as_str()).collect();
            found.push((phrase[0].line, texts.join(" "), rule.advice));
        }
    }
    found
}

/// Whether a phrase is a comparison or a consequence: "so long as", "so many that".
fn is_comparison(phrase: &[Word], next: Option<&Word>) -> bool {
    let follows = |word: &Word| matches!(word.text.as_str(), "as" | "that");
    phrase[0].text == "so"
        && phrase.last().is_some_and(|last| !last.ends)
        && next.is_some_and(follows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The phrases found in a file of a crate under the rules, with their lines.
    fn phrases(text: &str) -> Vec<String> {
        let complaints = check("rds/src/x.rs", text, &mut HashSet::new());
        let strip = |complaint: String| {
            let mut parts = complaint.splitn(4, ':');
            let line = parts.nth(1).unwrap().to_owned();
            format!("{line}{}", parts.next().unwrap())
        };
        complaints.into_iter().map(strip).collect()
    }

    #[test]
    fn person_in_any_comment_is_found() {
        assert_eq!(phrases("//! Nobody knows.\n"), ["1 `nobody`"]);
        assert_eq!(phrases("/// The one.\n///\n/// Who asks.\n"), ["3 `who`"]);
        assert_eq!(phrases("let x = 1; // signalled\n"), ["1 `signalled`"]);
        assert_eq!(phrases("\t// Whoever, and everybody's.\n").len(), 2);
    }

    #[test]
    fn code_quotations_and_longer_words_are_allowed() {
        let quoted =
            "/// Runs `who`, and prints \"nobody\nlet who = \"// said\";\n/// said\" or so.\n";
        assert_eq!(phrases("let who = told(\"http://said\");\n"), [""; 0]);
        assert_eq!(phrases("/// Runs `who`, and prints \"nobody\".\n"), [""; 0]);
        assert_eq!(phrases("let x = \"a // signalled\";\n"), [""; 0]);
        assert_eq!(phrases("let x = \"a\"; // signalled\n"), ["1 `signalled`"]);
        assert_eq!(phrases("/// Whole essays; sayings.\n"), [""; 0]);
        assert_eq!(
            phrases("/// ```\n/// who();\n/// ```\n/// Code.\n"),
            [""; 0]
        );
        // A quotation ends with its block of comments.
        assert_eq!(phrases(quoted), ["3 `said`"]);
    }

    #[test]
    fn phrase_across_lines_is_found() {
        assert_eq!(
            phrases("// The first of those\n// that wait.\n"),
            ["1 `those that`"]
        );
        assert_eq!(phrases("// Waits so\n// long.\n"), ["1 `so long`"]);
        assert_eq!(phrases("// One of those. That is it.\n"), [""; 0]);
        assert_eq!(phrases("// One of those.\n\n// That one.\n"), [""; 0]);
        assert_eq!(
            phrases("// One of those\nlet x = 1;\n// that wait\n"),
            [""; 0]
        );
    }

    #[test]
    fn bound_without_a_noun_is_found_but_comparison_is_not() {
        assert_eq!(phrases("// So many messages.\n"), ["1 `so many`"]);
        assert_eq!(phrases("// So often, as a rule.\n"), ["1 `so often`"]);
        assert_eq!(
            phrases("// So long as it runs, so many that it fills.\n"),
            [""; 0]
        );
        assert_eq!(phrases("// So, few are left.\n"), [""; 0]);
    }

    #[test]
    fn field_terms_are_required() {
        assert_eq!(phrases("// Lets go of it.\n"), ["1 `lets go`"]);
        assert_eq!(
            phrases("// It asks for signs of life.\n"),
            ["1 `signs of life`"]
        );
        assert_eq!(phrases("// A signalled one is announced.\n").len(), 2);
        assert_eq!(phrases("// A signaled one. Lets the peer go.\n"), [""; 0]);
    }

    #[test]
    fn every_rule_finds_its_words() {
        for rule in &RULES {
            let sentence = |pick: fn(&&[&'static str]) -> &'static str| {
                let words: Vec<&str> = rule.words.iter().map(pick).collect();
                format!("// X {} y.\n", words.join(" "))
            };
            for text in [
                sentence(|choice| choice[0]),
                sentence(|choice| choice[choice.len() - 1]),
            ] {
                assert!(!phrases(&text).is_empty(), "{text}");
            }
        }
    }

    #[test]
    fn test_name_with_a_person_is_found() {
        let test = |attributes: &str, function: &str| phrases(&format!("{attributes}\n{function}"));
        assert_eq!(
            test("    #[test]", "    fn nobody_hears() {}\n"),
            ["2 `nobody`", "2 `hears`"]
        );
        assert_eq!(
            test(
                "#[tokio::test]\n#[ignore = \"slow\"]\n// Why.",
                "async fn so_long<T>() {}\n"
            ),
            ["4 `so long`"]
        );
        assert_eq!(test("#[test]", "fn recv_of_whole_message() {}\n"), [""; 0]);
        assert_eq!(test("#[inline]", "fn nobody() {}\n"), [""; 0]);
        assert_eq!(phrases("#[test]\nfn a() {}\nfn nobody() {}\n"), [""; 0]);
    }

    #[test]
    fn documents_are_checked_without_code_blocks() {
        let check = |text: &str| check("rds/tests/cases.md", text, &mut HashSet::new());
        assert_eq!(check("# Cases\n\n```sh\nwho\n```\n"), [""; 0]);
        assert_eq!(
            check("| a | nobody |\n"),
            [
                "rds/tests/cases.md:1: `nobody`: name the agent by its noun: the caller, the peer, the device"
            ]
        );
    }

    #[test]
    fn exceptions_have_reasons_and_are_used() {
        for (file, part, reason) in EXCEPTIONS {
            assert!(!file.is_empty() && !part.is_empty() && !reason.is_empty());
        }
        let all: HashSet<usize> = (0..EXCEPTIONS.len()).collect();
        assert_eq!(unused_exceptions(&all), [""; 0]);
        assert_eq!(unused_exceptions(&HashSet::new()).len(), EXCEPTIONS.len());
    }
}
