//! Names of values, as programs print them.

use std::ffi::{CStr, c_char, c_int};

/// The name of a value in a table, or the name of unknown values.
fn name(names: &[&'static CStr], value: c_int, unknown: &'static CStr) -> *const c_char {
    let index = usize::try_from(value).unwrap_or(usize::MAX);
    names.get(index).unwrap_or(&unknown).as_ptr()
}

/// Names of completion statuses (`ibv_wc_status`), by value.
const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// Names of device types (`ibv_node_type`), from 1 upwards.
const NODE_TYPES: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// Names of port states (`ibv_port_state`), by value.
const PORT_STATES: [&CStr; 6] = [
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

/// Names of asynchronous events (`ibv_event_type`), by value.
const EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

/// Names of operations (`ibv_wr_opcode`), by value.
const OPERATIONS: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    c"unknown",
    c"unknown",
    c"flush",
    c"atomic-write",
];

/// Since rdma-core 65.
#[unsafe(no_mangle)]
extern "C" fn ibv_wr_opcode_str(operation: c_int) -> *const c_char {
    name(&OPERATIONS, operation, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    name(&STATUSES, status, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    name(&NODE_TYPES, kind.saturating_sub(1), c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    name(&PORT_STATES, state, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(kind: c_int) -> *const c_char {
    name(&EVENTS, kind, c"unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: *const c_char) -> &'static str {
        // SAFETY: from a table of terminated strings, which lasts.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap()
    }

    #[test]
    fn names_are_those_of_the_values_and_others_are_unknown() {
        assert_eq!(text(ibv_wc_status_str(5)), "Work Request Flushed Error");
        assert_eq!(text(ibv_wc_status_str(23)), "TM software rendezvous");
        assert_eq!(text(ibv_node_type_str(1)), "InfiniBand channel adapter");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        assert_eq!(text(ibv_event_type_str(18)), "GID table change");
        assert_eq!(text(ibv_wr_opcode_str(15)), "atomic-write");
        assert_eq!(text(ibv_wr_opcode_str(16)), "unknown");
        for unknown in [-1, c_int::MIN, 1000] {
            assert_eq!(text(ibv_wc_status_str(unknown)), "unknown");
            assert_eq!(text(ibv_node_type_str(unknown)), "unknown");
        }
        assert_eq!(text(ibv_node_type_str(0)), "unknown");
    }
}
