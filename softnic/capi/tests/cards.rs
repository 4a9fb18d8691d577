//! The cards in the README, and in the help of the command, are those of the table, with the attributes that a device reports.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, process::Command, ptr};

use ibverbs_sys as ffi;
use softnic::{Card, Fabric};

/// A cell of a value that no source gives, and softnic's own values in its place.
const NO_SOURCE: &str = "–";
const MAX_TRIED: u32 = 2048;
const OWN_MAX_CQE: i64 = 1 << 22;

/// An open device of a card, closed by the drop.
struct Device {
    ctx: *mut ffi::ibv_context,
    _fabric: Fabric,
}

impl Device {
    fn new(card: Card) -> Self {
        let fabric = Fabric::seeded(7).card(card);
        let host = fabric.host("10.9.0.1".parse().unwrap());
        let ctx = host.run(|| {
            // SAFETY: no count is requested.
            let list = unsafe { ffi::ibv_get_device_list(ptr::null_mut()) };
            // SAFETY: the list has the host's device.
            let device = unsafe { *list };
            // SAFETY: a device of the list.
            let ctx = unsafe { ffi::ibv_open_device(device) };
            // SAFETY: the list is freed once.
            unsafe { ffi::ibv_free_device_list(list) };
            ctx
        });
        Self {
            ctx,
            _fabric: fabric,
        }
    }

    fn attr(&self) -> ffi::ibv_device_attr {
        let mut attr = ffi::ibv_device_attr::zeroed();
        // SAFETY: an open context, and attributes of this function.
        assert_eq!(unsafe { ffi::ibv_query_device(self.ctx, &raw mut attr) }, 0);
        attr
    }

    /// Maximum inline bytes of a queue pair with one request and one element, by trial.
    fn max_inline(&self, kind: ffi::ibv_qp_type) -> u32 {
        // SAFETY: an open context.
        let pd = unsafe { ffi::ibv_alloc_pd(self.ctx) };
        // SAFETY: an open context.
        let cq = unsafe { ffi::ibv_create_cq(self.ctx, 4, ptr::null_mut(), ptr::null_mut(), 0) };
        let is_created = |inline| {
            let mut attr = ffi::ibv_qp_init_attr::zeroed();
            (attr.send_cq, attr.recv_cq, attr.qp_type) = (cq, cq, kind);
            let cap = &mut attr.cap;
            (cap.max_send_wr, cap.max_recv_wr) = (1, 1);
            (cap.max_send_sge, cap.max_recv_sge) = (1, 1);
            cap.max_inline_data = inline;
            // SAFETY: live objects.
            let qp = unsafe { ffi::ibv_create_qp(pd, &raw mut attr) };
            // SAFETY: live until here.
            !qp.is_null() && unsafe { ffi::ibv_destroy_qp(qp) } == 0
        };
        let max = (0..=MAX_TRIED)
            .rev()
            .find(|inline| is_created(*inline))
            .unwrap();
        // SAFETY: no queue pair has the queue.
        assert_eq!(unsafe { ffi::ibv_destroy_cq(cq) }, 0);
        // SAFETY: no object is in the domain.
        assert_eq!(unsafe { ffi::ibv_dealloc_pd(pd) }, 0);
        max
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened by `new`, and closed once.
        unsafe { ffi::ibv_close_device(self.ctx) };
    }
}

/// The row of a card in the README.
fn row(card: Card) -> String {
    let device = Device::new(card);
    let attr = device.attr();
    let kind = match card {
        Card::Efa => ffi::ibv_qp_type::IBV_QPT_UD,
        _ => ffi::ibv_qp_type::IBV_QPT_RC,
    };
    let sourced = |value: i64, own: i64| match value == own {
        true => NO_SOURCE.to_owned(),
        false => value.to_string(),
    };
    let inline = sourced(device.max_inline(kind).into(), MAX_TRIED.into());
    let max_cqe = sourced(attr.max_cqe.into(), OWN_MAX_CQE);
    let atomics = match attr.atomic_cap {
        _ if card == Card::Ql41000 => NO_SOURCE,
        ffi::ibv_atomic_cap::IBV_ATOMIC_NONE => "none",
        ffi::ibv_atomic_cap::IBV_ATOMIC_HCA => "HCA",
        _ => "global",
    };
    format!(
        "| `{card}` | {} | {} | {} | {} | {inline} | {}, {} | {atomics} |",
        card.driver(),
        attr.max_qp_wr,
        attr.max_sge,
        max_cqe,
        attr.max_qp_rd_atom,
        attr.max_qp_init_rd_atom,
    )
}

#[test]
fn cards_in_the_readme_have_the_reported_attributes() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let (_, table) = readme.split_once("| card | driver |").unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let rows: Vec<_> = rows.collect();
    let expected: Vec<_> = Card::ALL.iter().map(|card| row(*card)).collect();
    assert_eq!(rows, expected, "write:\n{}", expected.join("\n"));
}

#[test]
fn help_lists_all_cards() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softnic"));
    let help = command.args(["run", "--help"]).output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout);
    for card in Card::ALL {
        let line = format!("- {card}: {}", card.driver());
        let words: Vec<_> = help.split_whitespace().collect();
        assert!(words.join(" ").contains(&line), "{line}: {help}");
    }
}
