//! Names of tests in sources, with modules, and checks of selections by parts of the names.

/// A test function in a source file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestName<'t> {
    pub(crate) line: usize,
    pub(crate) name: &'t str,
    /// Inline modules around the function, from the outermost.
    modules: Vec<&'t str>,
}

impl TestName<'_> {
    /// The path of the test, with the folders and the file as modules: `verbs::src::cq::room::tests::NAME`.
    pub(crate) fn path(&self, file: &str) -> String {
        let file = file.trim_end_matches(".rs").trim_end_matches("/mod");
        let parts = file.split('/').chain(self.modules.iter().copied());
        let parts: Vec<&str> = parts.chain([self.name]).collect();
        parts.join("::")
    }
}

/// The functions of a source file with `#[test]` or an attribute such as `#[tokio::test]`.
pub(crate) fn in_file(text: &str) -> Vec<TestName<'_>> {
    let (mut tests, mut modules) = (Vec::new(), Vec::<(usize, &str)>::new());
    let mut is_test = false;
    for (index, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if !code.is_empty() && !code.starts_with("//") {
            modules.retain(|(outer, _)| *outer < indent);
        }
        if let Some(module) = inline_module(code) {
            modules.push((indent, module));
        }
        if code.starts_with("#[test]") || code.starts_with("#[tokio::test") {
            is_test = true;
        } else if is_test && !code.starts_with('#') && !code.starts_with("//") {
            if let Some(name) = function(code) {
                tests.push(TestName {
                    line: index + 1,
                    name,
                    modules: modules.iter().map(|(_, module)| *module).collect(),
                });
            }
            is_test = false;
        }
    }
    tests
}

/// Reports selections without a matching test: a rename has dropped tests from a run.
pub(crate) fn empty_selections(selections: &[&str], paths: &[String]) -> Vec<String> {
    selections
        .iter()
        .filter(|part| !paths.iter().any(|path| path.contains(**part)))
        .map(|part| format!("xtask: no test has `{part}` in its path; mend the selection"))
        .collect()
}

/// Reports patterns `fun:*TEST*` of valgrind suppressions without a matching test: a rename has made an intentional
/// leak an error. Frames without a leading wildcard are functions of libraries.
pub(crate) fn empty_suppressions(suppressions: &str, paths: &[String]) -> Vec<String> {
    let is_matched = |pattern: &str| {
        let mut matching = paths
            .iter()
            .filter(|path| pattern.split('*').all(|part| path.contains(part)));
        matching.next().is_some()
    };
    let lines = suppressions.lines().enumerate();
    lines
        .filter_map(|(index, line)| Some((index + 1, line.trim().strip_prefix("fun:")?)))
        .filter(|(_, pattern)| pattern.starts_with('*') && !is_matched(pattern))
        .map(|(line, pattern)| {
            format!("ci/valgrind.supp:{line}: no test matches `{pattern}`; mend the pattern")
        })
        .collect()
}

/// The name of an inline module, if this line starts one.
fn inline_module(code: &str) -> Option<&str> {
    let code = code.strip_prefix("pub(crate) ").unwrap_or(code);
    let code = code.strip_prefix("pub ").unwrap_or(code);
    code.strip_prefix("mod ")?.strip_suffix(" {")
}

/// The name of a function, if this line starts one.
fn function(code: &str) -> Option<&str> {
    let code = code.strip_prefix("async ").unwrap_or(code);
    let name = code.strip_prefix("fn ")?;
    Some(&name[..name.find(['(', '<'])?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
fn helper() {}

#[cfg(test)]
mod tests {
    mod inner {
        #[test]
        #[ignore = \"slow\"]
        // Reason.
        fn first_of_inner() {
        }
    }

    #[tokio::test(flavor = \"multi_thread\")]
    async fn second_of_tests<T>() {}

    fn helper() {}
}

#[test]
fn third_of_file() {}
";

    #[test]
    fn test_paths_have_files_and_modules() {
        let paths = |file: &str| -> Vec<String> {
            let tests = in_file(SOURCE);
            tests.iter().map(|test| test.path(file)).collect()
        };
        assert_eq!(
            paths("verbs/src/cq/account.rs"),
            [
                "verbs::src::cq::account::tests::inner::first_of_inner",
                "verbs::src::cq::account::tests::second_of_tests",
                "verbs::src::cq::account::third_of_file"
            ]
        );
        assert_eq!(
            paths("verbs/src/mr/mod.rs")[2],
            "verbs::src::mr::third_of_file"
        );
        let lines: Vec<usize> = in_file(SOURCE).iter().map(|test| test.line).collect();
        assert_eq!(lines, [9, 14, 20]);
    }

    #[test]
    fn selection_without_a_test_is_found() {
        let paths = ["a::wire::recv_works".to_owned()];
        assert_eq!(empty_selections(&["wire::", "recv"], &paths), [""; 0]);
        assert_eq!(
            empty_selections(&["wire::", "wires::"], &paths),
            ["xtask: no test has `wires::` in its path; mend the selection"]
        );
    }

    #[test]
    fn suppression_without_a_test_is_found() {
        let paths = ["verbs::tests::fake::scopes::batch_leaks".to_owned()];
        let suppressions = "{\n   fun:malloc\n   fun:*fake*batch*\n   fun:*batch_is_gone*\n}\n";
        assert_eq!(
            empty_suppressions(suppressions, &paths),
            ["ci/valgrind.supp:4: no test matches `*batch_is_gone*`; mend the pattern"]
        );
    }
}
