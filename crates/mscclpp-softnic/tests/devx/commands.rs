// SPDX-License-Identifier: MIT
//! A driver that speaks to the device by commands alone, with numbers of its own.

use mlx5_queue::{
    Completion, Doorbell, DoorbellRecord, Flags, Operation, QueueIndex, QueueNumber, RingSize,
    WorkRequest,
};
use mscclpp_softnic::devx::*;
use mscclpp_softnic::*;

pub(crate) const ENTRIES: usize = 64;

/// Sets bits of a big-endian word.
pub(crate) fn set(bytes: &mut [u8], at: usize, shift: u32, width: u32, value: u32) {
    let word = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let mask = (((1u64 << width) - 1) as u32) << shift;
    let word = word & !mask | value << shift & mask;
    bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

pub(crate) fn get(bytes: &[u8], at: usize, shift: u32, width: u32) -> u32 {
    let word = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    word >> shift & ((1u64 << width) - 1) as u32
}

/// Changes a command before it is given.
pub(crate) type Edit<'a> = &'a dyn Fn(&mut [u8]);

pub(crate) const AS_IT_IS: Edit<'static> = &|_| {};

pub(crate) fn command(opcode: u32, bytes: usize) -> Vec<u8> {
    let mut input = vec![0; bytes];
    set(&mut input, 0x00, 16, 16, opcode);
    input
}

/// A queue pair and all that it stands on.
pub(crate) struct Queue {
    pub(crate) devx: Devx,
    pub(crate) completions: Option<Object>,
    pub(crate) pair: Option<Object>,
    pub(crate) page: Option<Uar>,
    pub(crate) umems: Vec<Umem>,
    pub(crate) ring: HostBuffer,
    pub(crate) record: HostBuffer,
    pub(crate) entries: HostBuffer,
    head: QueueIndex,
    polled: QueueIndex,
}

impl Queue {
    /// Memory, and nothing made of it yet.
    pub(crate) fn new(devx: &Devx, domain: &ProtectionDomain) -> Self {
        let entries = HostBuffer::new(ENTRIES * 64 + 64);
        for entry in 0..ENTRIES {
            entries.write(entry * 64 + 63, &[Completion::UNWRITTEN]);
        }
        let ring = HostBuffer::new(ENTRIES * 64);
        let record = HostBuffer::new(64);
        devx.use_domain(domain);
        let umems = [&entries, &ring, &record].map(|b| devx.register(b.range()).unwrap());
        Self {
            devx: devx.clone(),
            completions: None,
            pair: None,
            page: Some(devx.allocate_page(UarKind::NonCached).unwrap()),
            umems: umems.into(),
            ring,
            record,
            entries,
            head: QueueIndex::ZERO,
            polled: QueueIndex::ZERO,
        }
    }

    /// Both queues.
    pub(crate) fn made(devx: &Devx, domain: &ProtectionDomain) -> Self {
        let mut queue = Self::new(devx, domain);
        queue.completions = Some(queue.create_cq(AS_IT_IS).unwrap());
        queue.pair = Some(queue.create_qp(domain, AS_IT_IS).unwrap());
        queue
    }

    pub(crate) fn create_cq(&self, edit: Edit<'_>) -> Result<Object, (Refusal, Vec<u8>)> {
        let mut input = command(0x400, 0x110);
        set(&mut input, 0x10, 25, 1, 1);
        set(&mut input, 0x10, 17, 1, 1);
        set(&mut input, 0x14, 0, 32, self.umems[0].number());
        set(&mut input, 0x1c, 24, 5, ENTRIES.ilog2());
        set(
            &mut input,
            0x1c,
            0,
            24,
            self.page.as_ref().unwrap().number(),
        );
        set(&mut input, 0x24, 0, 8, self.devx.event_queue(0).unwrap());
        input[0x48..0x50].copy_from_slice(&(ENTRIES as u64 * 64).to_be_bytes());
        set(&mut input, 0x58, 0, 32, self.umems[0].number());
        set(&mut input, 0x5c, 31, 1, 1);
        edit(&mut input);
        let mut output = vec![0xff; 0x10];
        let object = self.devx.create(&input, &mut output);
        let object = object.map_err(|refusal| (refusal, output.clone()))?;
        assert_eq!(get(&output, 8, 0, 24), object.number());
        assert_eq!(output[0], 0);
        Ok(object)
    }

    pub(crate) fn create_qp(
        &self,
        domain: &ProtectionDomain,
        edit: Edit<'_>,
    ) -> Result<Object, (Refusal, Vec<u8>)> {
        let mut input = command(0x500, 0x110);
        let context = &mut input[0x18..];
        set(context, 0x04, 0, 24, domain.number());
        set(context, 0x08, 11, 4, ENTRIES.ilog2());
        set(context, 0x0c, 0, 24, self.page.as_ref().unwrap().number());
        set(
            context,
            0x7c,
            0,
            24,
            self.completions.as_ref().unwrap().number(),
        );
        set(context, 0xac, 24, 3, 3);
        context[0xa0..0xa8].copy_from_slice(&8u64.to_be_bytes());
        set(context, 0xd0, 28, 1, 1);
        set(context, 0xe4, 0, 32, self.umems[2].number());
        set(&mut input, 0x108, 0, 32, self.umems[1].number());
        set(&mut input, 0x10c, 31, 1, 1);
        edit(&mut input);
        let mut output = vec![0xff; 0x10];
        let object = self.devx.create(&input, &mut output);
        let object = object.map_err(|refusal| (refusal, output.clone()))?;
        assert_eq!(get(&output, 8, 0, 24), object.number());
        Ok(object)
    }

    pub(crate) fn number(&self) -> u32 {
        self.pair.as_ref().unwrap().number()
    }

    pub(crate) fn modify(&self, opcode: u32, edit: Edit<'_>) -> Result<(), Refusal> {
        let mut input = command(opcode, 0x110);
        set(&mut input, 0x08, 0, 24, self.number());
        edit(&mut input);
        let mut output = vec![0xff; 0x40];
        let result = self
            .devx
            .modify(self.pair.as_ref().unwrap(), &input, &mut output);
        assert_eq!(result.is_err(), output[0] != 0);
        result
    }

    pub(crate) fn init(&self, edit: Edit<'_>) -> Result<(), Refusal> {
        self.modify(0x502, &|input| {
            let context = &mut input[0x18..];
            set(context, 0x00, 11, 2, 3);
            set(context, 0x3c, 16, 8, 1);
            set(context, 0x90, 13, 3, 7);
            set(context, 0x90, 16, 4, 1);
            edit(input);
        })
    }

    /// To a queue pair of a device, by GID, and as RoCE needs it too.
    pub(crate) fn rtr(
        &self,
        peer: DeviceAddress,
        number: u32,
        edit: Edit<'_>,
    ) -> Result<(), Refusal> {
        self.modify(0x503, &|input| {
            let context = &mut input[0x18..];
            set(context, 0x08, 29, 3, 3);
            set(context, 0x08, 24, 5, 30);
            set(context, 0x14, 0, 24, number);
            set(context, 0x1c, 23, 1, 1);
            context[0x28..0x38].copy_from_slice(&peer.0);
            set(context, 0x38, 0, 16, 0xc123);
            context[0x3e..0x44].copy_from_slice(&mac(peer));
            set(context, 0x90, 21, 3, 4);
            set(context, 0x94, 24, 5, 12);
            edit(input);
        })
    }

    pub(crate) fn rts(&self, edit: Edit<'_>) -> Result<(), Refusal> {
        self.modify(0x504, &|input| {
            let context = &mut input[0x18..];
            // About 1 ms, and no second try.
            set(context, 0x20, 27, 5, 8);
            set(context, 0x70, 21, 3, 4);
            edit(input);
        })
    }

    /// State and MTU, as the device says.
    pub(crate) fn state(&self) -> (u32, u32) {
        let mut input = command(0x50b, 0x10);
        set(&mut input, 0x08, 0, 24, self.number());
        let mut output = vec![0xff; 0x110];
        self.devx
            .query(self.pair.as_ref().unwrap(), &input, &mut output)
            .unwrap();
        (get(&output, 0x18, 28, 4), get(&output, 0x20, 29, 3))
    }

    /// Posts one request, by stores alone.
    pub(crate) fn post(&mut self, operation: Operation<'_>) {
        let number = QueueNumber::new(self.number()).unwrap();
        let request = WorkRequest {
            queue: number,
            index: self.head.get() as u16,
            flags: Flags::SIGNALLED,
            operation,
        };
        let mut bytes = [0; 64];
        let written = request.encode(&mut bytes).unwrap();
        let slot = (self.head.get() as usize % ENTRIES) * 64;
        self.ring.write(slot, &bytes[..written]);
        self.head = QueueIndex::new(self.head.get() + 1);
        // The record lies 8 bytes from the umem's begin.
        let word = DoorbellRecord::send_word(self.head);
        self.record.write(8 + DoorbellRecord::SEND_OFFSET, &word);
        let page = self.page.as_ref().unwrap().page();
        page.ring_bytes(Doorbell::new(number, self.head).encode());
    }

    /// The next completion's failure, if it is one.
    pub(crate) fn poll(&mut self) -> Option<mlx5_queue::Syndrome> {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let size = RingSize::new(ENTRIES as u32).unwrap();
        loop {
            let mut bytes = [0; 64];
            self.entries
                .read((self.polled.get() as usize % ENTRIES) * 64, &mut bytes);
            if let Some(found) = Completion::poll(&bytes, self.polled, size).unwrap() {
                self.polled = QueueIndex::new(self.polled.get() + 1);
                return found.failure().map(|failure| failure.syndrome);
            }
            assert!(std::time::Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }

    /// Everything by commands, in the order in which it has to be.
    pub(crate) fn destroy(mut self) {
        for object in [self.pair.take(), self.completions.take()]
            .into_iter()
            .flatten()
        {
            self.devx.destroy(object).unwrap();
        }
        self.devx.free_page(self.page.take().unwrap()).unwrap();
        for umem in self.umems.drain(..) {
            self.devx.deregister(umem).unwrap();
        }
    }
}
