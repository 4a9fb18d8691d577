//! Messages: layouts, encoding and decoding.

use proptest::{prelude::*, proptest};
use softnic::{
    cm::{
        CommIds, ConnParam, Ece, MAD_LEN, Message, Mra, PrivateData, Reject, RejectInfo, Rejected,
        Reply, Request, ServiceReply, ServiceRequest,
    },
    engine::QpKind,
};

fn data(len: usize) -> impl Strategy<Value = PrivateData> {
    prop::collection::vec(any::<u8>(), len).prop_map(|bytes| PrivateData::new(&bytes))
}

fn ids() -> impl Strategy<Value = CommIds> {
    any::<[u32; 2]>().prop_map(|[local, remote]| CommIds { local, remote })
}

fn param() -> impl Strategy<Value = ConnParam> {
    let flags = any::<[bool; 2]>();
    (0_u32..1 << 24, any::<[u8; 2]>(), [0_u8..8, 0..8], flags).prop_map(
        |(qp_num, reads, retries, flags)| ConnParam {
            qp_num,
            responder_resources: reads[0],
            initiator_depth: reads[1],
            flow_control: flags[0],
            retry_count: retries[0],
            rnr_retry_count: retries[1],
            srq: flags[1],
        },
    )
}

fn ece() -> impl Strategy<Value = Ece> {
    (0_u32..1 << 24, any::<u32>()).prop_map(|(vendor_id, options)| Ece { vendor_id, options })
}

fn request() -> impl Strategy<Value = Message> {
    let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), 0_u32..1 << 24);
    let path = (any::<[[u8; 4]; 2]>(), 0_u32..1 << 20, any::<[u8; 2]>());
    let codes = ([0_u8..32, 0..32, 0..32], 0_u8..16, 0_u8..16, any::<u16>());
    let parts = (
        numbers,
        param(),
        path,
        codes,
        ece(),
        data(92),
        any::<bool>(),
    );
    parts.prop_map(|(numbers, param, path, codes, ece, private_data, is_uc)| {
        let (timeouts, max_cm_retries, mtu, pkey) = codes;
        Message::Request(Box::new(Request {
            local_comm_id: numbers.0,
            service_id: numbers.1,
            ca_guid: numbers.2,
            kind: Some(if is_uc { QpKind::Uc } else { QpKind::Rc }),
            param,
            starting_psn: numbers.3,
            remote_response_timeout: timeouts[0],
            local_response_timeout: timeouts[1],
            max_cm_retries,
            pkey,
            mtu,
            local_addr: path.0[0].into(),
            remote_addr: path.0[1].into(),
            flow_label: path.1,
            traffic_class: path.2[0],
            hop_limit: path.2[1],
            ack_timeout: timeouts[2],
            ece,
            private_data,
        }))
    })
}

fn reply() -> impl Strategy<Value = Message> {
    let numbers = (0_u32..1 << 24, any::<u64>(), 0_u8..32);
    let parts = (ids(), param(), numbers, ece(), data(196));
    parts.prop_map(|(ids, param, numbers, ece, private_data)| {
        Message::Reply(Box::new(Reply {
            ids,
            param: ConnParam {
                retry_count: 0,
                ..param
            },
            starting_psn: numbers.0,
            ack_delay: numbers.2,
            ca_guid: numbers.1,
            ece,
            private_data,
        }))
    })
}

fn about() -> impl Strategy<Value = Rejected> {
    prop_oneof![
        Just(Rejected::Request),
        Just(Rejected::Reply),
        Just(Rejected::Other)
    ]
}

fn info() -> impl Strategy<Value = RejectInfo> {
    prop_oneof![
        Just(RejectInfo::None),
        any::<u64>().prop_map(RejectInfo::Guid),
        any::<[u8; 16]>().prop_map(RejectInfo::Gid)
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let mra = (ids(), about(), 0_u8..32).prop_map(|(ids, about, service_timeout)| {
        Message::Mra(Mra {
            ids,
            about,
            service_timeout,
        })
    });
    let reject = (ids(), about(), any::<u16>(), info(), data(148));
    let reject = reject.prop_map(|(ids, about, reason, info, private_data)| {
        Message::Reject(Box::new(Reject {
            ids,
            about,
            reason,
            info,
            private_data,
        }))
    });
    let question = (any::<u32>(), any::<u16>(), any::<u64>(), data(216));
    let question = question.prop_map(|(request_id, pkey, service_id, private_data)| {
        Message::ServiceRequest(Box::new(ServiceRequest {
            request_id,
            pkey,
            service_id,
            private_data,
        }))
    });
    let answer = (
        any::<[u32; 2]>(),
        any::<u8>(),
        0_u32..1 << 24,
        any::<u64>(),
        data(136),
    );
    let answer = answer.prop_map(
        |([request_id, qkey], status, qp_num, service_id, private_data)| {
            Message::ServiceReply(Box::new(ServiceReply {
                request_id,
                status,
                qp_num,
                service_id,
                qkey,
                private_data,
            }))
        },
    );
    prop_oneof![
        request(),
        reply(),
        mra,
        reject,
        ids().prop_map(Message::Ready),
        (ids(), 0_u32..1 << 24).prop_map(|(ids, qp)| Message::Disconnect(ids, qp)),
        ids().prop_map(Message::Disconnected),
        question,
        answer
    ]
}

proptest! {
    #[test]
    fn message_round_trips_through_bytes(message in message(), tid in any::<u64>()) {
        let bytes = message.encode(tid);
        prop_assert_eq!(Message::decode(&bytes), Some((tid, message)));
    }

    #[test]
    fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _decoded = Message::decode(&bytes);
    }
}

#[test]
fn fields_of_a_request_are_where_the_specification_has_them() {
    let request = Request {
        local_comm_id: 0x0102_0304,
        service_id: 0x0106_1d2f,
        ca_guid: 0x1112_1314_1516_1718,
        kind: Some(QpKind::Rc),
        param: ConnParam {
            qp_num: 0x21_2223,
            responder_resources: 0x24,
            initiator_depth: 0x25,
            flow_control: true,
            retry_count: 5,
            rnr_retry_count: 6,
            srq: true,
        },
        starting_psn: 0x31_3233,
        remote_response_timeout: 16,
        local_response_timeout: 17,
        max_cm_retries: 15,
        pkey: 0xffff,
        mtu: 5,
        local_addr: [10, 9, 0, 1].into(),
        remote_addr: [10, 9, 0, 2].into(),
        flow_label: 0xa_bcde,
        traffic_class: 0x41,
        hop_limit: 0x42,
        ack_timeout: 13,
        ece: Ece {
            vendor_id: 0x51_5253,
            options: 0x5455_5657,
        },
        private_data: PrivateData::new(&[0x61; 92]),
    };
    let bytes = Message::Request(Box::new(request)).encode(7);
    assert_eq!(bytes[16..24], [0, 0x10, 0, 0, 0x54, 0x55, 0x56, 0x57]);
    let at = |offset: usize, len: usize| &bytes[24 + offset..24 + offset + len];
    assert_eq!(at(0, 8), [1, 2, 3, 4, 0, 0x51, 0x52, 0x53]);
    assert_eq!(at(8, 8), [0, 0, 0, 0, 1, 6, 0x1d, 0x2f]);
    assert_eq!(at(32, 4), [0x21, 0x22, 0x23, 0x24]);
    assert_eq!((bytes[24 + 39], bytes[24 + 43]), (0x25, 16 << 3 | 1));
    assert_eq!(at(44, 4), [0x31, 0x32, 0x33, 17 << 3 | 5]);
    assert_eq!(at(48, 4), [0xff, 0xff, 5 << 4 | 6, 15 << 4 | 1 << 3]);
    assert_eq!(at(52, 4), [0xff; 4], "no LIDs");
    assert_eq!(at(66, 6), [0xff, 0xff, 10, 9, 0, 1]);
    assert_eq!(at(88, 3), [0xab, 0xcd, 0xe0]);
    assert_eq!((at(92, 2), bytes[24 + 95]), (&[0x41, 0x42][..], 13 << 3));
    assert_eq!(at(140, 92), [0x61; 92]);
}

#[test]
fn fields_of_a_reply_are_where_the_specification_has_them() {
    let reply = Reply {
        ids: CommIds {
            local: 0x0102_0304,
            remote: 0x0506_0708,
        },
        param: ConnParam {
            qp_num: 0x21_2223,
            responder_resources: 0x24,
            initiator_depth: 0x25,
            flow_control: true,
            retry_count: 0,
            rnr_retry_count: 6,
            srq: true,
        },
        starting_psn: 0x31_3233,
        ack_delay: 15,
        ca_guid: 1,
        ece: Ece::default(),
        private_data: PrivateData::new(&[0x61; 196]),
    };
    let bytes = Message::Reply(Box::new(reply)).encode(7);
    assert_eq!(bytes[16..18], [0, 0x13]);
    assert_eq!(bytes[24..32], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bytes[24 + 12..24 + 15], [0x21, 0x22, 0x23]);
    assert_eq!(bytes[24 + 20..24 + 23], [0x31, 0x32, 0x33]);
    assert_eq!(
        bytes[24 + 24..24 + 28],
        [0x24, 0x25, 15 << 3 | 1, 6 << 5 | 1 << 4]
    );
    assert_eq!(bytes[24 + 36..MAD_LEN], [0x61; 196]);
}
