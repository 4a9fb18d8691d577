//! The move of connections from TCP to RDMA (`RDMAV_FORK_SAFE`): servers of several processes.

use super::{Preload, python};

/// Runs a part of `moves.py`. A call to send waits for the peer's part of a move for `wait` seconds.
fn part(part: &str, wait: &str) {
    let mut program = Preload::Ours.load(python("moves.py"));
    program.arg(part);
    program.envs([("RDMAV_FORK_SAFE", "1"), ("RS_FORK_WAIT", wait)]);
    let ran = program.output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{part}: {}: {errors}", ran.status);
    assert_eq!(ran.stdout, b"all is well\n");
}

#[test]
fn level_triggered_loops_of_several_processes_move_each_connection() {
    part("workers-level", "100");
}

#[test]
fn edge_triggered_loops_of_several_processes_move_each_connection() {
    part("workers-edge", "100");
}

#[test]
fn moving_client_in_an_event_loop_is_readable_only_with_data() {
    part("strict", "100");
}

#[test]
fn connections_used_in_another_order_are_not_crossed() {
    part("used-late", "100");
}

#[test]
fn silent_connections_hinder_no_other_and_get_no_offer() {
    part("silent", "100");
}

#[test]
fn deferred_accept_does_not_delay_a_move() {
    part("deferred", "100");
}

#[test]
fn program_that_limits_segments_moves_or_is_not_waited_for() {
    part("segments", "100");
}

#[test]
fn program_with_a_low_water_mark_is_not_moved() {
    part("low-water", "100");
}

#[test]
fn greeting_server_moves_before_it_sends() {
    part("greeting", "100");
}

#[test]
fn threads_that_use_a_connection_at_once_move_it_once() {
    part("threads", "100");
}

#[test]
fn client_that_does_not_wait_stays_tcp_with_its_data() {
    part("late", "0");
}

#[test]
fn connections_of_a_server_that_changes_its_user_go_on() {
    part("user", "2");
}

#[test]
fn server_in_a_root_folder_without_devices_stays_tcp() {
    part("root", "2");
}
