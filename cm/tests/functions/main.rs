//! Every function of librdmacm has a test and a safe counterpart, found by its name. Constants, and names of
//! libibverbs, also lead to their counterparts.

#[path = "../../../verbs/tests/shared/rust_files.rs"]
mod rust_files;

use std::{collections::BTreeSet, fs, path::Path};

use rust_files::rust_files;

fn text_of(folder: &str) -> String {
    let texts = rust_files(folder).into_iter().map(fs::read_to_string);
    texts.map(|text| text.expect("it is text")).collect()
}

/// Functions of librdmacm, except those of `ib.h`.
fn functions() -> BTreeSet<String> {
    let found = [
        "rdmacm-sys/src/bindings.rs",
        "rdmacm-sys/src/inline",
        "rdmacm-sys/src/late.rs",
    ]
    .map(|path| {
        let path_in_tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        if path_in_tree.is_dir() {
            text_of(path)
        } else {
            fs::read_to_string(path_in_tree).expect("it is text")
        }
    })
    .concat();
    // A function of the bindings or of newer libraries, or the first line of an inline function's documentation.
    let name = |line: &str| {
        let line = line.trim_start();
        let after = line
            .strip_prefix("pub fn rdma_")
            .or_else(|| line.strip_prefix("fn rdma_"))
            .or_else(|| line.strip_prefix("/// `rdma_"))?;
        Some(format!("rdma_{}", after.split_once('(')?.0))
    };
    found.lines().filter_map(name).collect()
}

/// Rows of the table: the C function, the Rust counterpart, and the test.
fn table() -> Vec<[String; 3]> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("FUNCTIONS.md");
    let text = fs::read_to_string(path).expect("the table is there");
    let rows = tables::rows(&text, ["C", "here", "tested by"]).expect("the table has rows");
    rows.into_iter()
        .map(|row| row.cells.map(|cell| cell.trim_matches('`').to_owned()))
        .collect()
}

#[test]
fn function_table_is_complete() {
    let functions = functions();
    // 38, 2 and 3 of `rdma_cma.h`, and 3 and 16 of `rdma_verbs.h`.
    assert_eq!(functions.len(), 62, "{functions:?}");
    let listed: BTreeSet<_> = table().into_iter().map(|[c, ..]| c).collect();
    assert_eq!(listed, functions);
}

#[test]
fn documentation_names_every_function() {
    let source = text_of("cm/src");
    let missing: Vec<_> = functions()
        .into_iter()
        // C's way to report an error; here `Error` has this role.
        .filter(|name| name != "rdma_seterrno")
        .filter(|name| !source.contains(&format!("#[doc(alias = \"{name}\")]")))
        .collect();
    assert_eq!(missing, [""; 0]);
}

/// C names without a counterpart, by suffix, with the reason.
const WITHOUT_COUNTERPART: [(&str, &str); 15] = [
    ("_RESERVED", "the end of an enumeration"),
    (
        "IBV_ACCESS_OPTIONAL_FIRST",
        "the first of the optional flags",
    ),
    ("IBV_WQS_UNKNOWN", "a state in which no work queue is"),
    ("IBV_REREG_MR_FLAGS_SUPPORTED", "all flags together"),
    (
        "_FLOW_ACTION_ESP_MASK_ESN",
        "encryption by flows, which no driver has",
    ),
    ("IBV_FLOW_SPEC_ACTION_HANDLE", "encryption by flows"),
    ("_flow_action", "encryption by flows"),
    ("_flow_action_esp", "encryption by flows"),
    ("rdma_seterrno", "an error is a value here"),
    ("IBV_CQ_INIT_ATTR_MASK_FLAGS", "the builder sets it"),
    ("IBV_DM_MASK_HANDLE", "the import sets it"),
    ("IBV_OPS_SIGNALED", "operations on tags are always signaled"),
    (
        "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN",
        "a queue cannot be overrun",
    ),
    ("IBV_QP_CREATE_SOURCE_QPN", "a number of the device's maker"),
    ("_DRIVER1", "an operation of the device's maker"),
];

/// Names in the headers not used by programs, or part of another library's structures.
const OTHERS: [&str; 40] = [
    "IBV_PATH_FLAG_ALTERNATE",
    "IBV_PATH_FLAG_BIDIRECTIONAL",
    "IBV_PATH_FLAG_GMP",
    "IBV_PATH_FLAG_INBOUND",
    "IBV_PATH_FLAG_INBOUND_REVERSE",
    "IBV_PATH_FLAG_OUTBOUND",
    "IBV_PATH_FLAG_PRIMARY",
    "IBV_PATH_RECORD_REVERSIBLE",
    "IBV_SRQ_INIT_ATTR_CQ",
    "IBV_SRQ_INIT_ATTR_PD",
    "IBV_SRQ_INIT_ATTR_TYPE",
    "IBV_WC_DRIVER2",
    "IBV_WC_DRIVER3",
    "IBV_WC_IP_CSUM_OK",
    "IBV_WC_TM_DATA_VALID",
    "IBV_WQ_ATTR_CURR_STATE",
    "IBV_WQ_ATTR_FLAGS",
    "IBV_WQ_ATTR_STATE",
    "IBV_ACCESS_OPTIONAL_RANGE",
    "IBV_CREATE_CQ_SUP_WC_FLAGS",
    "IBV_DEVICE_CC_DMA_BOUNCE",
    "IBV_SYSFS_NAME_MAX",
    "IBV_SYSFS_PATH_MAX",
    "IBV_WC_IP_CSUM_OK_SHIFT",
    "IBV_WC_STANDARD_FLAGS",
    "RAI_DNS",
    "RAI_SA",
    "RDMA_CM_EVENT_ADDRINFO_ERROR",
    "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    "RDMA_CM_EVENT_INTERNAL",
    "RDMA_CM_EVENT_USER",
    "RDMA_IB_IP_PORT_MASK",
    "RDMA_IB_IP_PS_MASK",
    "RDMA_IB_IP_PS_TCP",
    "RDMA_IB_IP_PS_UDP",
    "RDMA_OPTION_IB",
    "RDMA_OPTION_ID",
    "RDMA_CM_JOIN_MC_ATTR_ADDRESS",
    "RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS",
    "RDMA_IB_PS_IB",
];

/// Returns the constants and functions of both libraries, including inline functions.
fn names_of_c() -> BTreeSet<String> {
    let folders = ["ibverbs-sys/src", "rdmacm-sys/src"];
    let text = folders.map(text_of).concat();
    let name = |line: &str| {
        let line = line.trim_start();
        let constant = line.strip_prefix("pub const ").filter(|rest| {
            let prefixes = ["IBV_", "RDMA_", "RAI_"];
            prefixes.iter().any(|prefix| rest.starts_with(prefix))
        });
        let function = line
            .strip_prefix("pub fn ")
            .or_else(|| line.strip_prefix("pub unsafe fn "))
            .filter(|rest| rest.starts_with("ibv_") || rest.starts_with("rdma_"));
        let rest = constant.or(function)?;
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
        Some(rest[..end].to_owned())
    };
    text.lines().filter_map(name).collect()
}

#[test]
fn every_name_of_c_is_found_in_the_documentation() {
    let names = names_of_c();
    assert!(names.len() > 500, "{}", names.len());
    let source = ["verbs/src", "cm/src", "rsocket/src"].map(text_of).concat();
    let has_none = |name: &str| {
        let excused = |(end, _): &(&str, &str)| name.ends_with(end);
        OTHERS.contains(&name) || WITHOUT_COUNTERPART.iter().any(excused)
    };
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !has_none(name))
        .filter(|name| !source.contains(&format!("doc(alias = \"{name}\")")))
        .collect();
    assert_eq!(missing, [""; 0]);
    // An unused exception belongs to a removed name.
    let useless = WITHOUT_COUNTERPART.map(|(end, _)| end);
    let useless = useless
        .iter()
        .filter(|end| !names.iter().any(|name| name.ends_with(**end)));
    assert_eq!(useless.collect::<Vec<_>>(), [&""; 0]);
    let missing = OTHERS.iter().filter(|name| !names.contains(**name));
    assert_eq!(missing.collect::<Vec<_>>(), [&""; 0]);
}

#[test]
fn function_table_names_existing_tests() {
    let tests = text_of("cm/tests/device") + &text_of("cm/src");
    let missing: Vec<_> = table()
        .into_iter()
        .filter(|[.., test]| {
            let name = test.rsplit("::").next().unwrap_or(test);
            !tests.contains(&format!("fn {name}()"))
        })
        .collect();
    assert_eq!(missing, [[""; 3]; 0]);
}
