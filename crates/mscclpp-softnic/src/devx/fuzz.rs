// SPDX-License-Identifier: MIT
//! Commands that no driver sends.

use std::panic::AssertUnwindSafe;

use super::commands::{Queue, command};
use super::*;
use crate::DeviceConfig;

/// The most that commands of a hundred steps may hold: rings are in the driver's memory.
const HELD: u64 = 8 << 20;

/// Bytes where a command has them wrong.
struct Edits<'a>(&'a [u8]);

impl Edits<'_> {
    fn apply(&self, input: &mut [u8]) {
        for edit in self.0.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % input.len();
            input[at] ^= edit[2];
        }
    }
}

/// What the input says to do: a step, and as many edits as its second byte says.
fn steps(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&[step, edits], rest) = bytes.split_first_chunk()?;
        let (edits, rest) = rest.split_at(rest.len().min(usize::from(edits % 8) * 3));
        bytes = rest;
        Some((step, edits))
    })
}

/// Good commands with some bytes changed, cut short, and in any order, on objects of other kinds
/// too: each is answered, and when all is let go nothing is left.
#[test]
fn fuzz_devx_commands() {
    let device = Device::open("soft0", DeviceConfig::default()).unwrap();
    let domain = device.allocate_domain().unwrap();
    let ports = [Port::Ethernet, Port::InfiniBand { lid: 7 }];
    let devices = ports.map(|port| Devx::new(device.clone(), port));
    let all = AssertUnwindSafe((device, domain, devices));
    bolero::check!().for_each(|bytes: &[u8]| {
        let (device, domain, devices) = &*all;
        let devx = &devices[bytes.len() % 2];
        mscclpp_fuzz::at_most(HELD, || run(devx, domain, bytes));
        let live = device.counters().live;
        assert_eq!((live.total(), live.protection_domains), (1, 1), "{live:?}");
        assert_eq!(devx.live_umems(), 0);
    });
}

fn run(devx: &Devx, domain: &ProtectionDomain, bytes: &[u8]) {
    let queue = Queue::made(devx, domain);
    let mut others = Vec::new();
    for (step, edits) in steps(bytes).take(100) {
        let edits = Edits(edits);
        let edit = |input: &mut [u8]| edits.apply(input);
        let mut output = vec![0xff; 0x110];
        match step % 11 {
            0 => others.extend(queue.create_cq(&edit)),
            1 => others.extend(queue.create_qp(domain, &edit)),
            2 => drop(queue.init(&edit)),
            3 => drop(queue.rtr(devx.device().address(), queue.number(), &edit)),
            4 => drop(queue.rts(&edit)),
            5 => drop(queue.modify(0x507, &edit)),
            6 => drop(queue.modify(0x50a, &edit)),
            // Any command at all, of any length, to any object, with room for any answer.
            7 => drop(devx.general(edits.0, &mut output[..usize::from(step)])),
            8 => others.extend(devx.create(edits.0, &mut output)),
            9 => {
                let mut input = command(0x500 + u32::from(step / 11), 0x110);
                edit(&mut input);
                let cut = input.len() - edits.0.len().min(input.len());
                for object in others.iter().chain(&queue.pair) {
                    let _ = devx.modify(object, &input[..cut], &mut output);
                    let _ = devx.query(object, &input, &mut output[..usize::from(step)]);
                }
            }
            _ => {
                if let Some(object) = others.pop()
                    && let Err((object, _)) = devx.destroy(object)
                {
                    others.push(object);
                }
            }
        }
    }
    // Those that stand on others first.
    drop(others);
    drop(queue);
}
