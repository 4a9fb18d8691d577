//! Tests of `verbs` on a device in memory: features missing on Soft-RoCE, and faults that no real
//! device shows on demand.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

mod allocations;
mod allocator;
mod attributes;
#[path = "../shared/children.rs"]
mod children;
mod completion_counters;
mod cqs;
mod descriptors;
mod domains;
mod efa;
mod events;
mod extended_posting;
mod failed_resizes;
mod fake_device;
mod faults;
mod fixture;
mod forks;
mod handles;
mod identifiers;
mod interleavings;
mod long_requests;
mod memory;
mod newtype;
mod of_another_device;
mod on_demand;
mod orders;
mod overtaking;
mod panics;
mod parts;
mod posting;
mod provider;
mod pyverbs;
mod queue_pairs;
mod rare_orders;
mod raw_packets;
mod recv_batches;
mod refused_posts;
mod removal;
mod rereg;
mod scopes;
mod sharing;
mod steering;
mod tag_matching;
mod tokens;
mod unmapped;
mod unproven_posts;
mod vendors;
mod waiting;
mod windows;
mod xrc;
