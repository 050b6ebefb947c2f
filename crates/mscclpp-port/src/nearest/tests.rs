// SPDX-License-Identifier: MIT
use super::*;
use crate::error::ErrorCode;
use crate::machine::recorded::Recorded;

fn survey(machine: &str, named: &[&str]) -> (Recorded, Survey) {
    let recorded = Recorded::open(machine);
    let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
    let survey = Survey::new(&recorded.root(), Wish::default(), &named);
    (recorded, survey)
}

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

/// HCA and distance that each GPU gets.
fn picks(survey: &Survey) -> Vec<(String, Distance)> {
    let gpus = survey.gpus().iter();
    gpus.map(|gpu| {
        let nearest = survey.nearest(&gpu.function.address).unwrap();
        assert!(
            nearest.to_string().contains(nearest.hca.name()),
            "{nearest}"
        );
        (nearest.hca.name().to_owned(), nearest.distance)
    })
    .collect()
}

#[test]
fn ib_each_gpu_gets_the_hca_of_its_switch() {
    let (_recorded, survey) = survey("cx7-hgx", &[]);
    let pix = |name: &str| (name.to_owned(), Distance::SameSwitch);
    let wanted = ["mlx5_0", "mlx5_2", "mlx5_3", "mlx5_10"].map(pix);
    assert_eq!(picks(&survey), wanted);
    let why = survey.nearest(&at("0000:43:00.0")).unwrap().to_string();
    for part in [
        "mlx5_2 port 1: PIX from 0000:43:00.0, behind the same PCIe switch",
        "mlx5_0 port 1 is NODE",
        "mlx5_1 port 1 is NODE",
        "mlx5_10 port 1 is SYS",
    ] {
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn ib_gpus_share_equal_ports_in_turns_and_always_the_same_way() {
    use Distance::{SameSwitch, System};
    for _ in 0..3 {
        let (_recorded, survey) = survey("cx7-roce", &[]);
        let picks = picks(&survey);
        let picks: Vec<_> = picks
            .iter()
            .map(|(name, level)| (name.as_str(), *level))
            .collect();
        // The third is on another socket, and starts anew.
        let wanted = [
            ("mlx5_0", SameSwitch),
            ("mlx5_1", SameSwitch),
            ("mlx5_0", System),
        ];
        assert_eq!(picks, wanted);
        let why = survey.nearest(&at("0000:3b:00.0")).unwrap().why;
        assert!(why.contains("number 2 of 2 equal ports"), "{why}");
        assert!(
            why.contains("passed over mlx5_2 port 1: no GID of it can be routed to"),
            "{why}"
        );
    }
    // Four GPUs, two adapters, nothing known but one host bridge.
    let (_recorded, survey) = survey("cx7-vf-vm", &[]);
    let phb = |name: &str| (name.to_owned(), Distance::HostBridge);
    assert_eq!(
        picks(&survey),
        ["mlx5_0", "mlx5_1", "mlx5_0", "mlx5_1"].map(phb)
    );
}

#[test]
fn ib_the_faster_of_two_at_one_distance_is_taken() {
    // Both are SYS from the second socket's GPU; the storage adapter's name comes first.
    let (_recorded, survey) = survey("cx7-hgx", &["mlx5_1", "mlx5_2"]);
    let nearest = survey.nearest(&at("0000:9d:00.0")).unwrap();
    assert_eq!(
        (nearest.hca.name(), nearest.distance),
        ("mlx5_2", Distance::System)
    );
    assert!(
        nearest.why.contains("mlx5_1 port 1 is SYS and slower"),
        "{nearest}"
    );
}

#[test]
fn ib_ports_that_are_down_or_wait_are_passed_over() {
    let (_recorded, survey) = survey("cx8-grace", &[]);
    let picks = picks(&survey);
    let names: Vec<&str> = picks.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["mlx5_0", "mlx5_0", "mlx5_2", "mlx5_3"]);
    assert!(picks.iter().all(|(_, level)| *level == Distance::Node));
    let (_recorded, survey) = self::survey("cx5-two-ports", &[]);
    // No GPU there: any address can be asked for.
    let nearest = survey.nearest(&at("0000:3a:00.0")).unwrap();
    assert_eq!((nearest.hca.name(), nearest.port), ("mlx5_0", 2));
    assert!(
        nearest
            .why
            .contains("passed over mlx5_0 port 1: it is down"),
        "{nearest}"
    );
    let nearest = survey.nearest(&at("0000:ff:1f.0")).unwrap();
    assert_eq!(nearest.distance, Distance::System);
}

#[test]
fn ib_what_is_named_wins_and_nothing_else_is_considered() {
    let gpu = at("0000:1b:00.0");
    let (_recorded, survey) = survey("cx7-hgx", &["mlx5_10"]);
    let nearest = survey.nearest(&gpu).unwrap();
    assert_eq!(
        (nearest.hca.name(), nearest.distance),
        ("mlx5_10", Distance::System)
    );
    let (_recorded, survey) = self::survey("none", &["soft1"]);
    let nearest = survey.nearest(&gpu).unwrap();
    assert_eq!((nearest.hca.name(), nearest.port), ("soft1", 1));
    assert!(nearest.why.contains("no place on PCIe"), "{nearest}");
    // A NIC in software is taken only if it was named, and then only if nothing is nearer.
    let (_recorded, survey) = self::survey("cx7-hgx", &["soft0", "mlx5_0"]);
    assert_eq!(survey.nearest(&gpu).unwrap().hca.name(), "mlx5_0");
}

#[test]
fn ib_without_a_usable_port_the_error_lists_every_one() {
    let gpu = at("0000:38:00.0");
    let (_recorded, survey) = survey("cx7-roce", &["mlx5_2", "mlx5_9"]);
    let error = survey.nearest(&gpu).unwrap_err();
    let Error::NoUsablePort { gpu: of, ports } = &error else {
        panic!("{error}")
    };
    let listed: Vec<_> = ports
        .iter()
        .map(|port| (port.hca.as_str(), port.port))
        .collect();
    assert_eq!(
        (*of, listed),
        (gpu, vec![("mlx5_2", Some(1)), ("mlx5_9", None)])
    );
    assert_eq!(error.code(), ErrorCode::SystemError);
    let text = error.to_string();
    for part in [
        "0000:38:00.0",
        "give its network interface an address",
        "it is not there",
        "soft0",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let (_recorded, survey) = self::survey("gpu-no-nic", &[]);
    let text = survey.nearest(&gpu).unwrap_err().to_string();
    assert!(text.contains("there is none"), "{text}");
    // One that somebody chose is obeyed, as it is in a connection.
    let recorded = Recorded::open("cx7-roce");
    let wish = Wish {
        gid_index: Some(1),
        ..Wish::default()
    };
    let survey = Survey::new(&recorded.root(), wish, &["mlx5_2".to_owned()]);
    assert_eq!(survey.nearest(&gpu).unwrap().hca.name(), "mlx5_2");
}
