//! `rds-stress`: both sides send, and each looks at what it gets.

use crate::guests::{Printed, run_with};

const STRESS: &str = env!("CARGO_BIN_EXE_rds-stress");

/// Runs both sides; `options` are what the active one says.
fn run(options: &str) -> Printed {
    let active = format!("{STRESS} --connect-retries 60 -s $B -r $A {options}");
    run_with(&[], 200, &active, STRESS)
}

/// The numbers of the last line.
fn average(lines: &[String]) -> Vec<f64> {
    let line = lines.iter().find(|line| line.ends_with("(average)"));
    assert!(line.is_some(), "no end in {lines:?}");
    let words = line.into_iter().flat_map(|line| line.split_whitespace());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Messages between all tasks, both ways, of both of which every byte is looked at.
#[test]
fn rds_stress_sends_and_looks() {
    let printed = run("-q 10000 -a 1024 -d 4 -t 2 -T 5 -v -c --show-histogram");
    for lines in [&printed.a, &printed.b] {
        let average = average(lines);
        assert_eq!(average[0], 2.0);
        assert!(average[1] > 0.0 && average[2] > 0.0, "{average:?}");
    }
    let histogram = printed.a.iter().filter(|line| line.starts_with('['));
    let trips = histogram.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert!(trips.sum::<u64>() > 0, "{:?}", printed.a);
}

/// Requests of one side only.
#[test]
fn rds_stress_sends_one_way() {
    let printed = run("-q 63 -a 63 -d 32 -t 2 -T 3 -o -z -R");
    let (a, b) = (average(&printed.a), average(&printed.b));
    assert!(a[1] > 0.0 && b[2] > 0.0, "{a:?} {b:?}");
    assert_eq!((a[2], b[1]), (0.0, 0.0));
}

/// Operations on memory, whose bytes are looked at on both sides.
#[test]
fn rds_stress_reads_and_writes_memory() {
    for options in [
        "-I 4",
        "--rdma-use-once 1 -M 1",
        "--rdma-cache-mrs 1 -M 2 --rdma-alignment 24",
    ] {
        let printed = run(&format!(
            "-q 1K -a 100 -d 2 -t 2 -T 4 -v -D 20000 {options}"
        ));
        for lines in [&printed.a, &printed.b] {
            let average = average(lines);
            assert!(average[4] + average[5] > 0.0, "{average:?}");
        }
    }
}
