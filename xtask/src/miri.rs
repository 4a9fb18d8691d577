//! Which tests `cargo xtask test --miri` runs, and which it leaves out for which reason.
//!
//! Miri interprets a test and finds undefined behaviour: data races, accesses outside of an object or after its end, and
//! references that alias. It runs with Tree Borrows. Stacked Borrows rejects requests that point to each other, and
//! elements that a provider reads where the work keeps them.
//!
//! Addresses go to the device as numbers, so provenance is exposed, and Miri cannot check it strictly.

/// How Miri checks: the fake device reaches memory by address (permissive provenance), tests leak on purpose, and
/// descriptors and clocks are the host's.
pub(crate) const FLAGS: &str = "-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks \
                                -Zmiri-disable-isolation";

/// The modules of `verbs` whose tests need no device and no call of the kernel.
pub(crate) const PURE: [&str; 8] = [
    "mr::copying",
    "mr::remote::tests",
    "qp::",
    "srq::slab",
    "work::",
    "wr_id",
    "recv_list",
    "bounded",
];

/// The tests on the fake device that are interpreted: modules, and tests of others. The rest has not been interpreted
/// yet: each test takes from 10 s to minutes, and some call functions of the kernel that Miri does not know.
pub(crate) const FAKE: [&str; 5] = [
    "identifiers::",
    "recv_batches::",
    "scopes::",
    "windows::",
    "peers_reach_no_more",
];

/// What the names of tests have in them that Miri cannot run, and why not.
pub(crate) const LEFT_OUT: [(&str, &str); 11] = [
    (
        "interleavings",
        "loom switches stacks by itself; or all orders, which take hours",
    ),
    (
        "legal",
        "compares the whole table of transitions, without unsafe code",
    ),
    ("the_largest_ring", "8 million slots"),
    ("work_of_no_size", "8 million slots"),
    ("names_come_round", "8 million slots"),
    ("processes_share", "memfd_create"),
    ("shared_memory", "memfd_create"),
    ("huge", "mmap with MAP_HUGETLB"),
    ("fork", "fork"),
    ("pool", "threads that spin for each other take hours"),
    (
        "from_many_threads",
        "threads that spin for each other take hours",
    ),
];
