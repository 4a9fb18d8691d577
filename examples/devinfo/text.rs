//! Text output of `ibv_devinfo`.

use std::{
    fmt::Display,
    io::{Result, Write},
};

use bitflags::Flags;
use verbs::{
    attr::{
        DeviceAttr, DeviceCaps, GidEntry, GidType, LinkLayer, OdpCaps, OdpGeneralCaps,
        OdpTransportCaps, QpTypes, RawPacketCaps, TagMatchingFlags,
    },
    device::DeviceList,
};

use super::{
    card::{Card, Port},
    names,
};

/// Prints the names of devices.
///
/// # Errors
/// Writing to `out` failed.
pub fn list(out: &mut impl Write, devices: &DeviceList) -> Result<()> {
    let plural = if devices.len() == 1 { "" } else { "s" };
    writeln!(out, "{} HCA{plural} found:", devices.len())?;
    for device in devices {
        writeln!(out, "\t{}", device.name())?;
    }
    writeln!(out)
}

/// Prints a device: the main attributes or, if `verbose`, all of them.
///
/// # Errors
/// Writing to `out` failed.
pub fn card(out: &mut impl Write, card: &Card, verbose: bool) -> Result<()> {
    let attr = &card.attr;
    let transport = names::transport(card.transport);
    writeln!(out, "hca_id:\t{}", card.name)?;
    writeln!(out, "\ttransport:\t\t\t{transport} ({})", card.transport.0)?;
    writeln!(out, "\tfw_ver:\t\t\t\t{}", attr.fw_ver())?;
    writeln!(out, "\tnode_guid:\t\t\t{}", attr.node_guid())?;
    writeln!(out, "\tsys_image_guid:\t\t\t{}", attr.sys_image_guid())?;
    writeln!(out, "\tvendor_id:\t\t\t{:#06x}", attr.vendor_id())?;
    writeln!(out, "\tvendor_part_id:\t\t\t{}", attr.vendor_part_id())?;
    writeln!(out, "\thw_ver:\t\t\t\t0x{:X}", attr.hw_ver())?;
    if let Some(board_id) = &card.board_id {
        writeln!(out, "\tboard_id:\t\t\t{board_id}")?;
    }
    writeln!(out, "\tphys_port_cnt:\t\t\t{}", attr.phys_port_cnt())?;
    if verbose {
        limits(out, card)?;
        extended(out, card)?;
    }
    for port in &card.ports {
        print_port(out, port, verbose)?;
    }
    writeln!(out)
}

/// Prints one line: a name, `tabs` tabs, and a value.
fn line(out: &mut impl Write, name: &str, tabs: usize, value: impl Display) -> Result<()> {
    writeln!(out, "\t{name}:{}{value}", "\t".repeat(tabs))
}

/// Prints a line for a flag.
fn flag(out: &mut impl Write, name: impl Display) -> Result<()> {
    writeln!(out, "\t\t\t\t\t{name}")
}

/// Prints a line for each named flag, and one for the unnamed bits.
fn flags<F: Flags<Bits: Copy + Into<u64>>>(
    out: &mut impl Write,
    set: F,
    words: &[(F, &str)],
) -> Result<()> {
    let mut unknown: u64 = set.bits().into();
    for (bit, word) in words {
        if set.contains(F::from_bits_retain(bit.bits())) {
            flag(out, word)?;
            let bits: u64 = bit.bits().into();
            unknown &= !bits;
        }
    }
    if unknown != 0 {
        flag(out, format_args!("Unknown flags: 0x{unknown:X}"))?;
    }
    Ok(())
}

fn limits(out: &mut impl Write, card: &Card) -> Result<()> {
    let attr = &card.attr;
    line(
        out,
        "max_mr_size",
        3,
        format_args!("{:#x}", attr.max_mr_size()),
    )?;
    line(
        out,
        "page_size_cap",
        3,
        format_args!("{:#x}", attr.page_size_cap()),
    )?;
    line(out, "max_qp", 4, attr.max_qp())?;
    line(out, "max_qp_wr", 3, attr.max_qp_wr())?;
    let low = attr.caps().bits() & u64::from(u32::MAX);
    line(out, "device_cap_flags", 2, format_args!("{low:#010x}"))?;
    let (caps, unknown) = names::device_caps(attr.caps());
    for cap in caps {
        flag(out, cap)?;
    }
    if unknown != 0 {
        flag(out, format_args!("Unknown flags: 0x{unknown:X}"))?;
    }
    line(out, "max_sge", 3, attr.max_sge())?;
    line(out, "max_sge_rd", 3, attr.max_sge_rd())?;
    line(out, "max_cq", 4, attr.max_cq())?;
    line(out, "max_cqe", 3, attr.max_cqe())?;
    line(out, "max_mr", 4, attr.max_mr())?;
    line(out, "max_pd", 4, attr.max_pd())?;
    line(out, "max_qp_rd_atom", 3, attr.max_qp_rd_atom())?;
    line(out, "max_ee_rd_atom", 3, attr.max_ee_rd_atom())?;
    line(out, "max_res_rd_atom", 2, attr.max_res_rd_atom())?;
    line(out, "max_qp_init_rd_atom", 2, attr.max_qp_init_rd_atom())?;
    line(out, "max_ee_init_rd_atom", 2, attr.max_ee_init_rd_atom())?;
    let cap = attr.atomic_cap();
    let atomic = format_args!("{} ({})", names::atomic_cap(cap), cap.0).to_string();
    line(out, "atomic_cap", 3, atomic)?;
    other_limits(out, card)
}

fn other_limits(out: &mut impl Write, card: &Card) -> Result<()> {
    let attr = &card.attr;
    line(out, "max_ee", 4, attr.max_ee())?;
    line(out, "max_rdd", 3, attr.max_rdd())?;
    line(out, "max_mw", 4, attr.max_mw())?;
    line(out, "max_raw_ipv6_qp", 2, attr.max_raw_ipv6_qp())?;
    line(out, "max_raw_ethy_qp", 2, attr.max_raw_ethy_qp())?;
    line(out, "max_mcast_grp", 3, attr.max_mcast_grp())?;
    line(out, "max_mcast_qp_attach", 2, attr.max_mcast_qp_attach())?;
    line(
        out,
        "max_total_mcast_qp_attach",
        1,
        attr.max_total_mcast_qp_attach(),
    )?;
    line(out, "max_ah", 4, attr.max_ah())?;
    line(out, "max_fmr", 3, attr.max_fmr())?;
    if attr.max_fmr() != 0 {
        line(out, "max_map_per_fmr", 2, attr.max_map_per_fmr())?;
    }
    line(out, "max_srq", 3, attr.max_srq())?;
    if attr.max_srq() != 0 {
        line(out, "max_srq_wr", 3, attr.max_srq_wr())?;
        line(out, "max_srq_sge", 3, attr.max_srq_sge())?;
    }
    line(out, "max_pkeys", 3, attr.max_pkeys())?;
    line(out, "local_ca_ack_delay", 2, attr.local_ca_ack_delay())
}

fn extended(out: &mut impl Write, card: &Card) -> Result<()> {
    let attr = &card.attr;
    odp(out, attr.odp_caps())?;
    clocks(out, attr)?;
    raw_packet(out, attr.raw_packet_caps())?;
    extended_flags(out, attr.caps())?;
    tso_and_rss(out, attr)?;
    line(out, "max_wq_type_rq", 3, attr.max_wq_type_rq())?;
    packet_pacing(out, attr)?;
    tag_matching(out, attr)?;
    let moderation = attr.cq_mod_caps();
    if moderation.max_cq_count != 0 || moderation.max_cq_period != 0 {
        writeln!(out, "\n\tcq moderation caps:")?;
        writeln!(out, "\t\tmax_cq_count:\t{}", moderation.max_cq_count)?;
        writeln!(out, "\t\tmax_cq_period:\t{} us\n", moderation.max_cq_period)?;
    }
    if attr.max_dm_size() != 0 {
        let bytes = attr.max_dm_size();
        writeln!(out, "\tmaximum available device memory:\t{bytes}Bytes\n")?;
    }
    line(out, "num_comp_vectors", 2, card.num_comp_vectors)
}

fn odp(out: &mut impl Write, odp: OdpCaps) -> Result<()> {
    writeln!(out, "\tgeneral_odp_caps:")?;
    let general = [
        (OdpGeneralCaps::SUPPORT, "ODP_SUPPORT"),
        (OdpGeneralCaps::IMPLICIT, "ODP_SUPPORT_IMPLICIT"),
    ];
    flags(out, odp.general, &general)?;
    for (name, caps) in [
        ("rc", odp.rc),
        ("uc", odp.uc),
        ("ud", odp.ud),
        ("xrc", odp.xrc),
    ] {
        writeln!(out, "\t{name}_odp_caps:")?;
        odp_transport(out, caps)?;
    }
    Ok(())
}

fn clocks(out: &mut impl Write, attr: &DeviceAttr) -> Result<()> {
    match attr.completion_timestamp_mask() {
        0 => writeln!(out, "\tcompletion_timestamp_mask not supported")?,
        mask => writeln!(out, "\tcompletion timestamp_mask:\t\t\t{mask:#018x}")?,
    }
    match attr.hca_core_clock() {
        0 => writeln!(out, "\tcore clock not supported"),
        clock => writeln!(out, "\thca_core_clock:\t\t\t{clock}kHZ"),
    }
}

fn raw_packet(out: &mut impl Write, raw: RawPacketCaps) -> Result<()> {
    if !raw.is_empty() {
        writeln!(out, "\traw packet caps:")?;
        let words = [
            (RawPacketCaps::CVLAN_STRIPPING, "C-VLAN stripping offload"),
            (RawPacketCaps::SCATTER_FCS, "Scatter FCS offload"),
            (RawPacketCaps::IP_CSUM, "IP csum offload"),
            (RawPacketCaps::DELAY_DROP, "Delay drop"),
        ];
        flags(out, raw, &words)?;
    }
    Ok(())
}

fn extended_flags(out: &mut impl Write, caps: DeviceCaps) -> Result<()> {
    line(
        out,
        "device_cap_flags_ex",
        2,
        format_args!("0x{:X}", caps.bits()),
    )?;
    for (name, bits) in caps.iter_names() {
        if bits.bits() > u64::from(u32::MAX) {
            flag(out, name)?;
        }
    }
    // Newer kernels set bits still unnamed here.
    let unknown = caps.bits() & !DeviceCaps::all().bits() & !u64::from(u32::MAX);
    if unknown != 0 {
        flag(out, format!("Unknown flags: 0x{unknown:X}"))?;
    }
    Ok(())
}

fn tso_and_rss(out: &mut impl Write, attr: &DeviceAttr) -> Result<()> {
    let tso = attr.tso_caps();
    writeln!(out, "\ttso_caps:")?;
    line(out, "\tmax_tso", 3, tso.max_tso)?;
    qp_types(out, tso.supported_qpts)?;
    let rss = attr.rss_caps();
    writeln!(out, "\trss_caps:")?;
    let tables = rss.max_rwq_indirection_tables;
    line(out, "\tmax_rwq_indirection_tables", 3, tables)?;
    let size = rss.max_rwq_indirection_table_size;
    line(out, "\tmax_rwq_indirection_table_size", 3, size)?;
    let function = rss.rx_hash_function.bits();
    line(out, "\trx_hash_function", 4, format_args!("{function:#x}"))?;
    let fields = rss.rx_hash_fields.bits();
    line(
        out,
        "\trx_hash_fields_mask",
        4,
        format_args!("0x{fields:X}"),
    )?;
    qp_types(out, rss.supported_qpts)
}

fn packet_pacing(out: &mut impl Write, attr: &DeviceAttr) -> Result<()> {
    let pacing = attr.packet_pacing_caps();
    writeln!(out, "\tpacket_pacing_caps:")?;
    writeln!(
        out,
        "\t\tqp_rate_limit_min:\t{}kbps",
        pacing.qp_rate_limit_min
    )?;
    writeln!(
        out,
        "\t\tqp_rate_limit_max:\t{}kbps",
        pacing.qp_rate_limit_max
    )?;
    qp_types(out, pacing.supported_qpts)
}

fn tag_matching(out: &mut impl Write, attr: &DeviceAttr) -> Result<()> {
    let tm = attr.tm_caps();
    if tm.max_num_tags == 0 {
        writeln!(out, "\ttag matching not supported")?;
    } else {
        line(out, "max_rndv_hdr_size", 2, tm.max_rndv_hdr_size)?;
        line(out, "max_num_tags", 3, tm.max_num_tags)?;
        line(out, "max_ops", 3, tm.max_ops)?;
        line(out, "max_sge", 3, tm.max_sge)?;
        writeln!(out, "\tflags:")?;
        flags(out, tm.flags, &[(TagMatchingFlags::RC, "IBV_TM_CAP_RC")])?;
    }
    Ok(())
}

fn odp_transport(out: &mut impl Write, caps: OdpTransportCaps) -> Result<()> {
    if caps.is_empty() {
        return flag(out, "NO SUPPORT");
    }
    let words = [
        (OdpTransportCaps::SEND, "SUPPORT_SEND"),
        (OdpTransportCaps::RECV, "SUPPORT_RECV"),
        (OdpTransportCaps::WRITE, "SUPPORT_WRITE"),
        (OdpTransportCaps::READ, "SUPPORT_READ"),
        (OdpTransportCaps::ATOMIC, "SUPPORT_ATOMIC"),
        (OdpTransportCaps::SRQ_RECV, "SUPPORT_SRQ"),
        (OdpTransportCaps::FLUSH, "SUPPORT_FLUSH"),
        (OdpTransportCaps::ATOMIC_WRITE, "SUPPORT_ATOMIC_WRITE"),
    ];
    flags(out, caps, &words)
}

fn qp_types(out: &mut impl Write, types: QpTypes) -> Result<()> {
    if types.is_empty() {
        return Ok(());
    }
    writeln!(out, "\t\tsupported_qp:")?;
    let words = [
        (QpTypes::RAW_PACKET, "SUPPORT_RAW_PACKET"),
        (QpTypes::UD, "SUPPORT_UD"),
        (QpTypes::RC, "SUPPORT_RC"),
        (QpTypes::UC, "SUPPORT_UC"),
    ];
    flags(out, types, &words)
}

fn print_port(out: &mut impl Write, port: &Port, verbose: bool) -> Result<()> {
    let attr = &port.attr;
    writeln!(out, "\t\tport:\t{}", port.number)?;
    let mut line = |name: &str, tabs: usize, value: String| {
        writeln!(out, "\t\t\t{name}:{}{value}", "\t".repeat(tabs))
    };
    let coded = |word: &str, code: u32| format!("{word} ({code})");
    let mtu = |mtu: verbs::attr::Mtu| coded(&names::mtu(mtu), mtu.0);
    let state = attr.state();
    line("state", 3, coded(names::port_state(state), state.0))?;
    line("max_mtu", 2, mtu(attr.max_mtu()))?;
    line("active_mtu", 2, mtu(attr.active_mtu()))?;
    line("sm_lid", 3, attr.sm_lid().to_string())?;
    line("port_lid", 2, attr.lid().to_string())?;
    line("port_lmc", 2, format!("{:#04x}", attr.lmc()))?;
    line(
        "link_layer",
        2,
        names::link_layer(attr.link_layer()).to_owned(),
    )?;
    if !verbose {
        return Ok(());
    }
    line("max_msg_sz", 2, format!("{:#x}", attr.max_msg_sz()))?;
    line("port_cap_flags", 2, format!("{:#010x}", attr.caps().bits()))?;
    line(
        "port_cap_flags2",
        1,
        format!("{:#06x}", attr.caps2().bits()),
    )?;
    let lanes = attr.max_vl_num();
    line(
        "max_vl_num",
        2,
        coded(names::max_vl_num(lanes), lanes.into()),
    )?;
    line("bad_pkey_cntr", 2, format!("{:#x}", attr.bad_pkey_cntr()))?;
    line("qkey_viol_cntr", 2, format!("{:#x}", attr.qkey_viol_cntr()))?;
    line("sm_sl", 3, attr.sm_sl().to_string())?;
    line("pkey_tbl_len", 2, attr.pkey_tbl_len().to_string())?;
    line("gid_tbl_len", 2, attr.gid_tbl_len().to_string())?;
    line("subnet_timeout", 2, attr.subnet_timeout().to_string())?;
    line("init_type_reply", 1, attr.init_type_reply().to_string())?;
    let (width, speed) = (attr.active_width(), attr.active_speed());
    let lanes = format!("{}X ({})", names::width(width), width.0);
    line("active_width", 2, lanes)?;
    line("active_speed", 2, coded(names::speed(speed), speed.0))?;
    let phys = attr.phys_state();
    if phys.0 != 0 {
        line(
            "phys_state",
            2,
            coded(names::phys_state(phys), phys.0.into()),
        )?;
    }
    for entry in &port.gids {
        let index = format!("GID[{:3}]", entry.gid_index);
        line(&index, 2, gid(entry, attr.link_layer()))?;
    }
    Ok(())
}

/// A GID, and over Ethernet its type.
fn gid(entry: &GidEntry, link_layer: LinkLayer) -> String {
    let hex: Vec<_> = entry
        .gid
        .0
        .chunks(2)
        .map(|b| format!("{:02x}{:02x}", b[0], b[1]))
        .collect();
    let gid = match entry.gid_type {
        GidType::ROCE_V2 => entry.gid.to_string(),
        _ => hex.join(":"),
    };
    let kind = match link_layer {
        LinkLayer::ETHERNET => format!(", {}", names::gid_type(entry.gid_type)),
        _ => String::new(),
    };
    gid + &kind
}
