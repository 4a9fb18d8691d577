//! The files in `recipes`, and the commands of the README, compared with the program.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::process::Command;

use clap::Parser;
use yaml_rust2::{Yaml, YamlLoader};

const WORKFLOW: &str = include_str!("../recipes/workflow.yml");
const CONTAINERFILE: &str = include_str!("../recipes/Containerfile");
const README: &str = include_str!("../README.md");
const PACKAGES: &str = include_str!("../packages/apt");

/// Groups of packages that `cargo soft-roce setup` installs.
const OF_GUESTS: [&str; 4] = ["guest", "qemu", "uml", "siw"];

/// The command line of the program.
#[derive(Debug, Parser)]
#[command(name = "cargo")]
enum Cargo {
    SoftRoce {
        #[command(subcommand)]
        _command: soft_roce::cli::Command,
    },
}

/// The steps of a job of the workflow.
fn steps<'a>(workflow: &'a Yaml, job: &str) -> &'a [Yaml] {
    workflow["jobs"][job]["steps"].as_vec().unwrap()
}

fn workflow() -> Yaml {
    let [workflow] = YamlLoader::load_from_str(WORKFLOW)
        .unwrap()
        .try_into()
        .unwrap();
    workflow
}

/// The shell scripts of the workflow.
fn scripts(workflow: &Yaml) -> Vec<&str> {
    let jobs = workflow["jobs"].as_hash().unwrap().values();
    let steps = jobs.flat_map(|job| job["steps"].as_vec().unwrap());
    steps.filter_map(|step| step["run"].as_str()).collect()
}

/// The arguments of each instruction with a name in the container's recipe.
fn instructions(name: &str) -> Vec<String> {
    let joined = CONTAINERFILE.replace("\\\n", " ");
    joined
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .map(str::to_owned)
        .collect()
}

/// The words of each `cargo soft-roce` command in shell scripts.
fn commands(script: &str) -> Vec<Vec<String>> {
    const OPERATORS: [&str; 7] = ["&&", "||", "|", ";", "&", "2>&1", ">"];
    let joined = script.replace("\\\n", " ");
    let mut commands = Vec::new();
    for line in joined.lines() {
        let words = shlex::split(line).unwrap_or_default();
        for command in words.split(|word| OPERATORS.contains(&word.as_str())) {
            let begin = command
                .windows(2)
                .position(|two| two == ["cargo", "soft-roce"]);
            commands.extend(begin.map(|begin| command[begin..].to_vec()));
        }
    }
    commands
}

#[track_caller]
fn assert_accepted(commands: &[Vec<String>], at_least: usize) {
    assert!(commands.len() >= at_least, "{commands:?}");
    for command in commands {
        if let Err(error) = Cargo::try_parse_from(command) {
            let is_help = error.kind() == clap::error::ErrorKind::DisplayHelp;
            assert!(is_help, "{command:?}: {error}");
        }
    }
}

#[test]
fn workflow_has_jobs_of_complete_steps() {
    let workflow = workflow();
    for key in ["name", "on", "permissions", "jobs"] {
        assert!(!workflow[key].is_badvalue(), "{key}");
    }
    for job in ["softnic", "guest"] {
        assert!(workflow["jobs"][job]["runs-on"].as_str().is_some());
        for step in steps(&workflow, job) {
            let (uses, run) = (step["uses"].as_str(), step["run"].as_str());
            assert!(uses.is_some() != run.is_some(), "{step:?}");
            assert!(uses.is_none_or(|uses| uses.contains('@')), "{step:?}");
        }
    }
}

#[test]
fn workflow_tests_on_softnic_and_in_guests() {
    let workflow = workflow();
    let runs = |job: &str, part: &str| {
        let scripts = steps(&workflow, job)
            .iter()
            .filter_map(|step| step["run"].as_str());
        scripts.into_iter().position(|script| script.contains(part))
    };
    assert!(runs("softnic", "cargo test").is_some());
    assert!(runs("softnic", "soft-roce").is_none());
    let order = [
        "/dev/kvm",
        "cargo install --locked --path target/rdma/soft-roce",
        "cargo soft-roce setup",
        "cargo soft-roce test",
    ];
    let order = order.map(|part| runs("guest", part).unwrap());
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn workflow_caches_the_folder_of_kernels() {
    let workflow = workflow();
    let caches = steps(&workflow, "guest").iter().filter(|step| {
        step["uses"]
            .as_str()
            .is_some_and(|uses| uses.starts_with("actions/cache@"))
    });
    let paths: Vec<_> = caches
        .map(|step| step["with"]["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["~/.cache/soft-roce"]);
    // `~/.cache` is not the default if the runner's image sets the variable.
    let sets = |script: &&str| script.contains("XDG_CACHE_HOME=$HOME/.cache");
    assert_eq!(scripts(&workflow).into_iter().filter(sets).count(), 1);
}

#[test]
fn commands_of_the_workflow_are_accepted() {
    let workflow = workflow();
    let found = scripts(&workflow).into_iter().flat_map(commands);
    assert_accepted(&found.collect::<Vec<_>>(), 4);
}

#[test]
fn commands_of_the_containers_recipe_are_accepted() {
    let mut found: Vec<_> = instructions("RUN")
        .iter()
        .flat_map(|run| commands(run))
        .collect();
    let [default] = instructions("CMD").try_into().unwrap();
    let words = default.trim_matches(['[', ']']).replace(", ", " ");
    found.extend(commands(&words));
    found.extend(
        CONTAINERFILE
            .lines()
            .filter(|line| line.starts_with('#'))
            .flat_map(|line| commands(line.trim_start_matches(['#', ' ']))),
    );
    assert_accepted(&found, 3);
}

#[test]
fn commands_of_the_readme_are_accepted() {
    let blocks = README.split("```").skip(1).step_by(2);
    let shell = blocks.filter(|block| block.starts_with("sh\n") || block.starts_with("console\n"));
    let lines = shell.flat_map(|block| commands(&block.replace("$ cargo", "cargo")));
    assert_accepted(&lines.collect::<Vec<_>>(), 10);
}

#[test]
fn backend_of_the_recipes_is_one_of_the_program() {
    let workflow = workflow();
    let of_workflow = workflow["jobs"]["guest"]["env"]["SOFT_ROCE_BACKEND"].as_str();
    let [variables] = instructions("ENV").try_into().unwrap();
    let mut variables = variables.split_whitespace();
    let of_container = variables.find_map(|one| one.strip_prefix("SOFT_ROCE_BACKEND="));
    for backend in [of_workflow, of_container] {
        let words = ["cargo", "soft-roce", "shell", "--backend", backend.unwrap()];
        assert!(Cargo::try_parse_from(words).is_ok(), "{backend:?}");
    }
}

#[test]
fn scripts_are_valid_shell() {
    let workflow = workflow();
    let runs = instructions("RUN");
    let of_container = runs.iter().map(String::as_str);
    for script in scripts(&workflow).into_iter().chain(of_container) {
        let checked = Command::new("bash")
            .args(["-n", "-c", script])
            .output()
            .unwrap();
        assert!(checked.status.success(), "{script}: {checked:?}");
    }
}

#[test]
fn container_has_the_packages_of_setup() {
    let lines = PACKAGES
        .lines()
        .map(|line| line.split_whitespace().collect());
    let lines: Vec<Vec<&str>> = lines.collect();
    let listed = |groups: &[&str]| -> BTreeSet<&str> {
        let lines = lines.iter().filter(|line| groups.contains(&line[0]));
        lines.map(|line| line[1]).collect()
    };
    let runs = instructions("RUN");
    let installed = runs.iter().filter_map(|run| {
        let (_, packages) = run.split_once("--no-install-recommends")?;
        let packages: BTreeSet<&str> = packages.split("&&").next()?.split_whitespace().collect();
        Some(packages)
    });
    let installed: Vec<_> = installed.collect();
    assert_eq!(installed, [listed(&OF_GUESTS), listed(&["build"])]);
}

#[test]
fn recipes_name_no_host() {
    for recipe in [WORKFLOW, CONTAINERFILE] {
        assert!(!recipe.contains("://"));
    }
}
