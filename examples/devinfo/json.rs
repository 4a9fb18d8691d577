//! JSON output: names as in C, sets of flags as lists of names and a number.

use std::{
    fmt::Display,
    io::{Result, Write},
};

use verbs::attr::DeviceAttr;

use super::{
    card::{Card, Port},
    names,
};

/// The members of an object, in order.
struct Object(String);

impl Object {
    fn new() -> Self {
        Self("{".to_owned())
    }

    /// Adds a member with a value of valid JSON, such as a number.
    fn raw(&mut self, name: &str, value: impl Display) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0 += &format!("{}:{value}", quoted(name));
    }

    fn text(&mut self, name: &str, value: impl Display) {
        self.raw(name, quoted(&value.to_string()));
    }

    fn end(self) -> String {
        self.0 + "}"
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => quoted += &format!("\\u{:04x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

fn list(elements: impl IntoIterator<Item = String>) -> String {
    let elements: Vec<_> = elements.into_iter().collect();
    format!("[{}]", elements.join(","))
}

/// Prints devices, as a list of objects.
///
/// # Errors
/// Writing to `out` failed.
pub fn cards(out: &mut impl Write, cards: &[Card]) -> Result<()> {
    writeln!(out, "{}", list(cards.iter().map(card)))
}

fn card(card: &Card) -> String {
    let attr = &card.attr;
    let mut json = Object::new();
    json.text("hca_id", &card.name);
    json.text("transport", names::transport(card.transport));
    json.text("fw_ver", attr.fw_ver());
    json.text("node_guid", card.node_guid);
    json.text("sys_image_guid", attr.sys_image_guid());
    json.raw("vendor_id", attr.vendor_id());
    json.raw("vendor_part_id", attr.vendor_part_id());
    json.raw("hw_ver", attr.hw_ver());
    if let Some(board_id) = &card.board_id {
        json.text("board_id", board_id);
    }
    json.raw("phys_port_cnt", attr.phys_port_cnt());
    json.raw("max_mr_size", attr.max_mr_size());
    json.raw("page_size_cap", attr.page_size_cap());
    json.raw("device_cap_flags_ex", attr.caps().bits());
    let caps = attr.caps();
    let names = caps.iter_names().map(|(name, _)| quoted(name));
    json.raw("device_caps", list(names));
    for (name, limit) in attr.limits() {
        json.raw(name, limit);
    }
    json.text("atomic_cap", names::atomic_cap(attr.atomic_cap()));
    json.raw("max_pkeys", attr.max_pkeys());
    json.raw("local_ca_ack_delay", attr.local_ca_ack_delay());
    extended(&mut json, attr);
    json.raw("num_comp_vectors", card.num_comp_vectors);
    json.raw("ports", list(card.ports.iter().map(port)));
    json.end()
}

/// Attributes of the extended query.
fn extended(json: &mut Object, attr: &DeviceAttr) {
    let odp = attr.odp_caps();
    json.raw("general_odp_caps", odp.general.bits());
    json.raw("rc_odp_caps", odp.rc.bits());
    json.raw("uc_odp_caps", odp.uc.bits());
    json.raw("ud_odp_caps", odp.ud.bits());
    json.raw("xrc_odp_caps", odp.xrc.bits());
    json.raw(
        "completion_timestamp_mask",
        attr.completion_timestamp_mask(),
    );
    json.raw("hca_core_clock", attr.hca_core_clock());
    json.raw("raw_packet_caps", attr.raw_packet_caps().bits());
    json.raw("max_tso", attr.tso_caps().max_tso);
    let rss = attr.rss_caps();
    json.raw("max_rwq_indirection_tables", rss.max_rwq_indirection_tables);
    json.raw(
        "max_rwq_indirection_table_size",
        rss.max_rwq_indirection_table_size,
    );
    json.raw("rx_hash_function", rss.rx_hash_function.bits());
    json.raw("rx_hash_fields_mask", rss.rx_hash_fields.bits());
    json.raw("max_wq_type_rq", attr.max_wq_type_rq());
    json.raw(
        "qp_rate_limit_min",
        attr.packet_pacing_caps().qp_rate_limit_min,
    );
    json.raw(
        "qp_rate_limit_max",
        attr.packet_pacing_caps().qp_rate_limit_max,
    );
    json.raw("max_num_tags", attr.tm_caps().max_num_tags);
    json.raw("max_cq_count", attr.cq_mod_caps().max_cq_count);
    json.raw("max_cq_period", attr.cq_mod_caps().max_cq_period);
    json.raw("max_dm_size", attr.max_dm_size());
}

fn port(port: &Port) -> String {
    let attr = &port.attr;
    let mut json = Object::new();
    json.raw("port", port.number);
    json.text("state", names::port_state(attr.state()));
    json.text("phys_state", names::phys_state(attr.phys_state()));
    json.raw("max_mtu", attr.max_mtu().bytes().unwrap_or(0));
    json.raw("active_mtu", attr.active_mtu().bytes().unwrap_or(0));
    json.raw("sm_lid", attr.sm_lid());
    json.raw("port_lid", attr.lid());
    json.raw("port_lmc", attr.lmc());
    json.text("link_layer", names::link_layer(attr.link_layer()));
    json.raw("max_msg_sz", attr.max_msg_sz());
    json.raw("port_cap_flags", attr.caps().bits());
    json.raw("port_cap_flags2", attr.caps2().bits());
    json.raw("pkey_tbl_len", attr.pkey_tbl_len());
    json.raw("gid_tbl_len", attr.gid_tbl_len());
    json.text(
        "active_width",
        format_args!("{}X", names::width(attr.active_width())),
    );
    json.text("active_speed", names::speed(attr.active_speed()));
    let gids = port.gids.iter().map(|entry| {
        let mut json = Object::new();
        json.raw("index", entry.gid_index);
        json.text("gid", entry.gid);
        json.text("type", format_args!("{:?}", entry.gid_type));
        json.end()
    });
    json.raw("gids", list(gids));
    json.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_text_is_quoted() {
        let mut object = Object::new();
        object.text("a\"b", "c\\d\n");
        object.raw("n", 7);
        assert_eq!(object.end(), r#"{"a\"b":"c\\d\u000a","n":7}"#);
        assert_eq!(list([]), "[]");
    }
}
