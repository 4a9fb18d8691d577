//! The last calls of builders, named for their effect.

/// Verbs of the last call of a builder: `create` an object of a device, `connect`, `listen` or `bind` an endpoint or a
/// socket, `prepare` an endpoint before `connect`, `start` a thread.
const END_VERBS: [&str; 6] = ["bind", "connect", "create", "listen", "prepare", "start"];

/// Ends of the names of builders.
const BUILDERS: [&str; 3] = ["Builder", "Options", "Registration"];

/// Reports public methods of builders that neither set an option nor begin with one of [`END_VERBS`].
pub(crate) fn other_ends(file: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut in_builder = false;
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        if let Some(header) = line.strip_prefix("impl") {
            in_builder = builder(header).is_some();
        } else if *line == "}" {
            in_builder = false;
        }
        let Some(name) = method(line).filter(|_| in_builder) else {
            continue;
        };
        let verb = name.split('_').next().unwrap_or(name);
        if returned_type(&lines[index..]).is_some_and(is_builder) || END_VERBS.contains(&verb) {
            continue;
        }
        complaints.push(format!(
            "{file}:{}: `{name}` ends a builder: begin its name with {}",
            index + 1,
            END_VERBS.map(|verb| format!("`{verb}`")).join(", ")
        ));
    }
    complaints
}

/// The builder of an inherent `impl`, whose line continues with `header`.
fn builder(header: &str) -> Option<&str> {
    if header.contains(" for ") {
        return None;
    }
    let header = header.strip_suffix(" {")?;
    let path = header.rsplit_once("> ").map_or(header, |(_, path)| path);
    let name = path.trim().split('<').next()?;
    is_builder(name).then_some(name)
}

fn is_builder(name: &str) -> bool {
    let name = name.split('<').next().unwrap_or(name);
    name == "Self" || BUILDERS.iter().any(|end| name.ends_with(end))
}

/// The name of a public method.
fn method(line: &str) -> Option<&str> {
    let item = line.strip_prefix("    pub ")?;
    let item = item.strip_prefix("unsafe ").unwrap_or(item);
    let item = item.strip_prefix("async ").unwrap_or(item);
    item.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// The type returned by the function that begins in the first line.
fn returned_type<'l>(lines: &[&'l str]) -> Option<&'l str> {
    let end = lines.iter().position(|line| line.ends_with('{'))?;
    let (_, returned) = lines[end].rsplit_once("-> ")?;
    returned.strip_suffix(" {")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(header: &str, method: &str) -> usize {
        let text = format!("{header} {{\n    {method} {{\n    }}\n}}\n");
        other_ends("a.rs", &text).len()
    }

    #[test]
    fn builder_with_other_end_is_reported() {
        let impls = [
            "impl Options",
            "impl<T: Queued> QueuePairBuilder<'_, T>",
            "impl<M> Registration<'_, M>",
        ];
        for header in impls {
            assert_eq!(found(header, "pub fn build(self) -> Pair"), 1, "{header}");
            assert_eq!(found(header, "pub fn run<T>(&self)"), 1, "{header}");
        }
        assert_eq!(
            other_ends(
                "a.rs",
                "impl Options {\n    pub fn go(\n        self,\n    ) -> Pair {\n"
            ),
            [
                "a.rs:2: `go` ends a builder: begin its name with `bind`, `connect`, `create`, `listen`, \
                 `prepare`, `start`"
            ]
        );
    }

    #[test]
    fn builder_with_end_verb_or_option_is_allowed() {
        for method in [
            "pub fn create(self) -> Pair",
            "pub fn create_for<T>(self) -> Pair<T>",
            "pub async fn connect_datagram(&self, addr: Addr) -> Stream",
            "pub fn depth(mut self, depth: u16) -> Self",
            "pub fn remote(self) -> RemoteRegistration<'pd, M>",
            "pub(crate) fn len(&self) -> usize",
            "fn check(&self) -> bool",
        ] {
            assert_eq!(found("impl Options", method), 0, "{method}");
        }
        assert_eq!(found("impl Stream", "pub fn build(self) -> Pair"), 0);
        assert_eq!(
            found("impl Debug for Options", "pub fn fmt(&self) -> Result"),
            0
        );
    }
}
