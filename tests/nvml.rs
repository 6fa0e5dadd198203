//! The gpu collector over the real nvml-wrapper and a library that answers what the test scripts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]
#![allow(missing_docs, reason = "a test crate has no readers of its documentation")]

#[path = "support/nvml.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kvtier_exporter::family::encode;
use kvtier_exporter::host::{Host, Look, Options, Pace, all};
use support::{OLD_DRIVER, Stub};
use tempfile::TempDir;

const TWO_CARDS: &str = "\
driver 580.95.05
count 2
gpu0.uuid GPU-aaaa
gpu0.name NVIDIA GeForce RTX 5090
gpu0.memory 34190917632 32505856000 706740224 978321408
gpu0.link 5 5 16 16
gpu1.uuid GPU-bbbb
gpu1.name NVIDIA L4
gpu1.memory 25757220864 1000000000 24000000000 757220864
gpu1.link 3 4 8 16
";

/// Without its first line that starts so, and with another line at the end.
fn changed(script: &str, start: &str, line: &str) -> String {
    let kept = script.lines().filter(|line| !line.starts_with(start)).map(|line| format!("{line}\n"));
    kept.chain([format!("{line}\n")]).collect()
}

fn options(library: &Path, root: &TempDir) -> Options {
    fs::write(root.path().join("meminfo"), "MemTotal: 127600748 kB\nMemAvailable: 26100000 kB\n").unwrap();
    Options {
        nvml_library: Some(library.into()),
        procfs: root.path().into(),
        collectors: vec!["gpu"],
        ..Options::default()
    }
}

fn start(options: &Options) -> Host {
    Host::with(all(options), Pace { interval: Duration::from_millis(5), longest: Duration::from_millis(40) })
}

fn text(look: &Look) -> String {
    encode(&look.families)
}

/// Looks until the text of the families satisfies, for at most 10 s.
fn until(host: &Host, what: &str, holds: impl Fn(&str) -> bool) -> Look {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let look = host.look(Instant::now());
        if holds(&text(&look)) {
            return look;
        }
        assert!(Instant::now() < deadline, "{what}: {}\n{:?}", text(&look), look.collectors);
        thread::sleep(Duration::from_millis(1));
    }
}

fn has(line: &'static str) -> impl Fn(&str) -> bool {
    move |text| text.lines().any(|got| got == line)
}

const WORKS: &str = "kvtier_collector_success{collector=\"gpu\"} 1";
const FAILS: &str = "kvtier_collector_success{collector=\"gpu\"} 0";

fn box_with(flags: &[&str], script: &str) -> (TempDir, Stub, Host) {
    let root = tempfile::tempdir().unwrap();
    let stub = Stub::build(root.path(), flags, script);
    let host = start(&options(stub.library(), &root));
    (root, stub, host)
}

#[test]
fn two_cards_are_told_apart_by_uuid() {
    let (_root, _stub, host) = box_with(&[], TWO_CARDS);
    let look = until(&host, "two cards", has(WORKS));
    let text = text(&look);
    for line in [
        "kvtier_gpu_info{gpu=\"0\",uuid=\"GPU-aaaa\",name=\"NVIDIA GeForce RTX 5090\",driver_version=\"580.95.05\"} 1",
        "kvtier_gpu_info{gpu=\"1\",uuid=\"GPU-bbbb\",name=\"NVIDIA L4\",driver_version=\"580.95.05\"} 1",
        "kvtier_gpu_unified_memory{gpu=\"0\",uuid=\"GPU-aaaa\"} 0",
        "kvtier_gpu_memory_total_bytes{gpu=\"0\",uuid=\"GPU-aaaa\"} 34190917632",
        "kvtier_gpu_memory_used_bytes{gpu=\"0\",uuid=\"GPU-aaaa\"} 32505856000",
        "kvtier_gpu_memory_free_bytes{gpu=\"0\",uuid=\"GPU-aaaa\"} 706740224",
        "kvtier_gpu_memory_reserved_bytes{gpu=\"0\",uuid=\"GPU-aaaa\"} 978321408",
        "kvtier_gpu_memory_free_bytes{gpu=\"1\",uuid=\"GPU-bbbb\"} 24000000000",
        "kvtier_gpu_memory_source_info{gpu=\"1\",uuid=\"GPU-bbbb\",source=\"nvml\"} 1",
        "kvtier_gpu_pcie_link_generation{gpu=\"1\",uuid=\"GPU-bbbb\"} 3",
        "kvtier_gpu_pcie_link_generation_max{gpu=\"1\",uuid=\"GPU-bbbb\"} 4",
        "kvtier_gpu_pcie_link_width{gpu=\"1\",uuid=\"GPU-bbbb\"} 8",
        "kvtier_gpu_pcie_link_width_max{gpu=\"1\",uuid=\"GPU-bbbb\"} 16",
    ] {
        assert!(text.lines().any(|got| got == line), "{line} in\n{text}");
    }
    assert_eq!(look.facts.gpus, Some(2));
    assert_eq!(look.collectors[0].notes, [""; 0]);
}

#[test]
fn without_a_library_nothing_is_said_of_gpus_until_one_appears() {
    let root = tempfile::tempdir().unwrap();
    let library = Stub::path_in(root.path());
    let host = start(&options(&library, &root));
    let look = until(&host, "no library", has(FAILS));
    assert!(!text(&look).contains("kvtier_gpu_"), "{}", text(&look));
    assert_eq!(look.facts.gpus, None);
    let failure = look.collectors[0].failure.clone().unwrap();
    assert!(failure.contains("--nvml.library") && failure.contains("libnvidia-ml.so.1"), "{failure}");

    let _stub = Stub::build(root.path(), &[], TWO_CARDS);
    assert_eq!(until(&host, "the library appears", has(WORKS)).facts.gpus, Some(2));
}

#[test]
fn a_driver_that_is_not_loaded_yet_is_no_fault_and_is_waited_for() {
    let (_root, stub, host) = box_with(&[], &format!("init 9\n{TWO_CARDS}"));
    let look = until(&host, "no driver", has(FAILS));
    assert!(look.collectors[0].failure.as_ref().unwrap().starts_with("not here: "), "{:?}", look.collectors);
    stub.script(TWO_CARDS);
    until(&host, "the driver comes up", has(WORKS));
}

#[test]
fn an_old_driver_without_the_memory_call_has_no_memory_figures_and_says_why() {
    let (_root, _stub, host) = box_with(OLD_DRIVER, TWO_CARDS);
    let look = until(&host, "old driver", has(WORKS));
    let text = text(&look);
    assert!(text.contains("uuid=\"GPU-aaaa\",source=\"none\"} 1"), "{text}");
    assert!(text.contains("kvtier_gpu_pcie_link_width{gpu=\"0\",uuid=\"GPU-aaaa\"} 16"), "{text}");
    assert!(!text.contains("kvtier_gpu_memory_total_bytes"), "{text}");
    assert!(look.collectors[0].notes.iter().any(|note| note.contains("too old")), "{:?}", look.collectors);
}

#[test]
fn one_memory_for_host_and_gpu_is_told_from_the_host() {
    let spark = "driver 580.95.05\ncount 1\ngpu0.uuid GPU-cccc\ngpu0.name NVIDIA GB10\ngpu0.memory !3\n";
    let (_root, _stub, host) = box_with(&[], spark);
    let look = until(&host, "GB10", has(WORKS));
    let text = text(&look);
    for line in [
        "kvtier_gpu_unified_memory{gpu=\"0\",uuid=\"GPU-cccc\"} 1",
        "kvtier_gpu_memory_source_info{gpu=\"0\",uuid=\"GPU-cccc\",source=\"host\"} 1",
        // 127,600,748 KiB and 26,100,000 KiB.
        "kvtier_gpu_memory_total_bytes{gpu=\"0\",uuid=\"GPU-cccc\"} 130663165952",
        "kvtier_gpu_memory_free_bytes{gpu=\"0\",uuid=\"GPU-cccc\"} 26726400000",
    ] {
        assert!(text.lines().any(|got| got == line), "{line} in\n{text}");
    }
    assert!(!text.contains("used_bytes") && !text.contains("pcie"), "{text}");
}

#[test]
fn a_card_that_does_not_support_the_call_has_no_figures() {
    let (_root, _stub, host) = box_with(&[], &changed(TWO_CARDS, "gpu1.memory", "gpu1.memory !3"));
    let text = text(&until(&host, "L4", has(WORKS)));
    assert!(text.contains("uuid=\"GPU-bbbb\",source=\"none\"} 1"), "{text}");
    assert!(text.contains("kvtier_gpu_memory_free_bytes{gpu=\"0\",uuid=\"GPU-aaaa\"} 706740224\n"), "{text}");
    assert!(!text.contains("kvtier_gpu_memory_free_bytes{gpu=\"1\""), "{text}");
}

/// What `/debug` and the log say of the collector.
fn said(look: &Look) -> String {
    look.collectors[0].notes.join("\n")
}

fn counts(listed: u32, readable: u32) -> impl Fn(&str) -> bool {
    let lines = [("listed", listed), ("readable", readable)];
    let lines = lines.map(|(state, number)| format!("kvtier_gpu_devices{{state=\"{state}\"}} {number}"));
    move |text| lines.iter().all(|line| text.lines().any(|got| got == line))
}

/// Two L4 of which the second has nothing more to say than its name.
const LOST_LATE: &str = "\
driver 550.1
count 2
gpu0.uuid GPU-2dee1e25-0000-0000-0000-79f2d0f2ebe5
gpu0.name NVIDIA L4
gpu0.memory 24000000000 1000000000 23000000000 0
gpu1.uuid GPU-b
gpu1.name NVIDIA L4
gpu1.memory !15
";

#[test]
fn a_gpu_that_is_lost_is_counted_and_named_and_costs_its_own_figures_only() {
    let (_root, stub, host) = box_with(&[], LOST_LATE);
    let look = until(&host, "lost from the start", counts(2, 1));
    assert!(text(&look).contains("uuid=\"GPU-b\",source=\"none\"} 1"), "{}", text(&look));
    assert!(has(WORKS)(&text(&look)) && text(&look).contains("free_bytes{gpu=\"0\""), "{}", text(&look));
    assert!(
        said(&look).starts_with("GPU 1 (NVIDIA L4, GPU-b) cannot be read: device fell off the bus"),
        "{}",
        said(&look)
    );

    stub.script(TWO_CARDS);
    let look = until(&host, "another two", counts(2, 2));
    assert_eq!(said(&look), "");
    // The handle is refused: nothing but the past says who it is. 16: it needs a reset.
    for code in [15, 16, 28] {
        stub.script(&format!("{TWO_CARDS}gpu1.handle {code}\n"));
        let look = until(&host, "the handle fails", counts(2, 1));
        assert!(!text(&look).contains("GPU-bbbb") && text(&look).contains("GPU-aaaa"), "{}", text(&look));
        assert!(said(&look).starts_with("GPU 1 (NVIDIA L4, GPU-bbbb) cannot be read: "), "{}", said(&look));
        assert_eq!(look.facts.gpus, Some(2));
        stub.script(TWO_CARDS);
        until(&host, "comes back", counts(2, 2));
    }
}

#[test]
fn a_gpu_that_is_no_longer_listed_is_not_forgotten() {
    let (_root, stub, host) = box_with(&[], TWO_CARDS);
    until(&host, "both", counts(2, 2));
    // The first one goes: the second takes its number.
    let second = "driver 580.95.05\ncount 1\ngpu0.uuid GPU-bbbb\ngpu0.name NVIDIA L4\ngpu0.memory 100 10 90 0\n";
    stub.script(second);
    let look = until(&host, "one less", counts(2, 1));
    assert!(said(&look).starts_with("GPU 0 (NVIDIA GeForce RTX 5090, GPU-aaaa) cannot be read: "), "{}", said(&look));
    assert_eq!(look.facts.gpus, Some(2), "two GPUs may still be two ranks");
    stub.script(&changed(TWO_CARDS, "count", "count 0"));
    let look = until(&host, "none is left", has(FAILS));
    assert!(counts(2, 0)(&text(&look)), "{}", text(&look));
    // A driver that is loaded anew lists the same ones.
    stub.script("init 9\n");
    let look = until(&host, "no driver", |_| {
        host.look(Instant::now()).collectors[0].failure.iter().any(|f| f.starts_with("not here"))
    });
    assert!(counts(2, 0)(&text(&look)), "{}", text(&look));
    stub.script(TWO_CARDS);
    until(&host, "the driver is back", counts(2, 2));
}

#[test]
fn a_box_on_which_no_gpu_can_be_read_does_not_claim_that_all_is_well() {
    let (_root, stub, host) = box_with(&[], &format!("{TWO_CARDS}gpu0.handle 15\ngpu1.handle 999\n"));
    let look = until(&host, "lost from the start", has(FAILS));
    assert!(counts(2, 0)(&text(&look)), "{}", text(&look));
    assert!(!text(&look).contains("kvtier_gpu_info"), "{}", text(&look));
    assert_eq!(look.facts.gpus, None);
    let failure = look.collectors[0].failure.clone().unwrap();
    assert!(failure.contains("no GPU can be read: GPU 0 cannot be read: ") && failure.contains("Xid"), "{failure}");
    assert!(said(&look).contains("GPU 1 cannot be read"), "{}", said(&look));
    stub.script(TWO_CARDS);
    until(&host, "both come back", counts(2, 2));
}

#[test]
fn a_total_of_nothing_is_not_told() {
    let spark = "driver 580.95.05\ncount 1\ngpu0.uuid GPU-cccc\ngpu0.name NVIDIA GB10\ngpu0.memory 0 0 0 0\ngpu0.link 1 5 1 16\n";
    let (_root, stub, host) = box_with(&[], spark);
    let look = until(&host, "GB10", has(WORKS));
    let all = text(&look);
    // The host's: 127,600,748 KiB in all, 26,100,000 KiB available.
    assert!(all.contains("kvtier_gpu_memory_total_bytes{gpu=\"0\",uuid=\"GPU-cccc\"} 130663165952\n"), "{all}");
    assert!(all.contains("kvtier_gpu_memory_free_bytes{gpu=\"0\",uuid=\"GPU-cccc\"} 26726400000\n"), "{all}");
    assert!(all.contains("source=\"host\"} 1\n") && !all.contains("used_bytes") && !all.contains("pcie"), "{all}");
    assert_eq!((counts(1, 1)(&all), said(&look).as_str()), (true, ""));

    // The link is told of a part with memory of its own only; its figures of nothing are nobody's. The second one says
    // that it has more used than there is.
    let cards = changed(TWO_CARDS, "gpu0.memory", "gpu0.memory 0 0 0 0");
    stub.script(&changed(&cards, "gpu1.memory", "gpu1.memory 1000 2000 10 0"));
    let look = until(&host, "cards", counts(2, 2));
    let all = text(&look);
    assert!(all.contains("GPU-aaaa\",source=\"none\"} 1") && all.contains("GPU-bbbb\",source=\"none\"} 1"), "{all}");
    assert!(
        all.contains("pcie_link_width{gpu=\"0\"") && !all.contains("free_bytes") && !all.contains("total_bytes"),
        "{all}"
    );
    assert!(
        said(&look).contains("a total of nothing") && said(&look).contains("contradict each other"),
        "{}",
        said(&look)
    );
}

/// Three of the seven slices that there can be, one of them given to nobody's container.
const SLICED: &str = "\
driver 580.95.05
count 1
gpu0.uuid GPU-dddd
gpu0.name NVIDIA H100 80GB HBM3
gpu0.memory !4
gpu0.link 5 5 16 16
gpu0.mig 7
gpu0.slice1.uuid MIG-1111
gpu0.slice1.name NVIDIA H100 80GB HBM3 MIG 1g.10gb
gpu0.slice1.memory 10334765056 13631488 10321133568 0
gpu0.slice5.uuid MIG-5555
gpu0.slice5.name NVIDIA H100 80GB HBM3 MIG 2g.20gb
gpu0.slice5.memory 20937965568 20000000000 937965568 0
";

#[test]
fn mig_slices_are_devices_of_their_own() {
    let (_root, stub, host) = box_with(&[], SLICED);
    let look = until(&host, "slices", counts(1, 1));
    let all = text(&look);
    for line in [
        "kvtier_gpu_info{gpu=\"0:1\",uuid=\"MIG-1111\",name=\"NVIDIA H100 80GB HBM3 MIG 1g.10gb\",driver_version=\"580.95.05\"} 1",
        "kvtier_gpu_memory_free_bytes{gpu=\"0:1\",uuid=\"MIG-1111\"} 10321133568",
        "kvtier_gpu_memory_used_bytes{gpu=\"0:5\",uuid=\"MIG-5555\"} 20000000000",
        "kvtier_gpu_pcie_link_width_max{gpu=\"0:5\",uuid=\"MIG-5555\"} 16",
    ] {
        assert!(all.lines().any(|got| got == line), "{line} in\n{all}");
    }
    assert_eq!(all.matches("kvtier_gpu_info{").count(), 2);
    assert!(!all.contains("GPU-dddd") && !all.contains("source=\"none\""), "{all}");
    assert_eq!((look.facts.gpus, said(&look).as_str()), (Some(1), ""));

    // Cut anew: slices come and go, and none is missed.
    let fewer: String =
        SLICED.lines().filter(|line| !line.contains("slice1")).map(|line| format!("{line}\n")).collect();
    stub.script(&fewer);
    let look = until(&host, "cut anew", |text| !text.contains("MIG-1111"));
    assert_eq!((counts(1, 1)(&text(&look)), look.facts.gpus, said(&look).as_str()), (true, Some(1), ""));

    // A slice that fails is its GPU's failure, and no GPU is left.
    stub.script(&changed(&fewer, "gpu0.slice5.memory", "gpu0.slice5.memory !15"));
    let look = until(&host, "a slice is lost", has(FAILS));
    assert!(counts(1, 0)(&text(&look)), "{}", text(&look));
    assert!(look.collectors[0].failure.as_ref().unwrap().contains("its slice 0:5: "), "{:?}", look.collectors);
}

#[test]
fn a_cut_gpu_whose_slices_are_hidden_gets_the_right_hint() {
    let hidden: String =
        SLICED.lines().filter(|line| !line.contains("slice")).map(|line| format!("{line}\n")).collect();
    let (_root, stub, host) = box_with(&[], &hidden);
    let look = until(&host, "no slice", counts(1, 1));
    assert!(text(&look).contains("uuid=\"GPU-dddd\",source=\"none\"} 1"), "{}", text(&look));
    assert!(said(&look).contains("cut into MIG slices") && !said(&look).contains("--gpu.unified"), "{}", said(&look));
    // A driver that does not tell of MIG, and only refuses.
    let refuses: String =
        hidden.lines().filter(|line| !line.contains(".mig")).map(|line| format!("{line}\n")).collect();
    stub.script(&refuses);
    until(&host, "refused", |_| said(&host.look(Instant::now())).contains("may not ask"));
}

#[test]
fn one_gpu_that_is_listed_twice_is_one() {
    let twice = changed(TWO_CARDS, "gpu1.uuid", "gpu1.uuid GPU-aaaa");
    let (_root, _stub, host) = box_with(&[], &twice);
    let look = until(&host, "once", counts(1, 1));
    assert_eq!((text(&look).matches("kvtier_gpu_info{").count(), look.facts.gpus), (1, Some(1)));
    assert!(said(&look).contains("GPU 1 is left out"), "{}", said(&look));
}

#[test]
fn gpus_without_a_uuid_are_told_by_their_numbers() {
    let nameless: String =
        TWO_CARDS.lines().filter(|line| !line.contains("uuid")).map(|line| format!("{line}\n")).collect();
    let (_root, _stub, host) = box_with(&[], &nameless);
    let look = until(&host, "both", counts(2, 2));
    assert!(text(&look).contains("kvtier_gpu_memory_free_bytes{gpu=\"1\"} 24000000000\n"), "{}", text(&look));
}

#[test]
fn a_library_that_stops_working_is_dropped_and_opened_anew() {
    let (_root, stub, host) = box_with(&[], TWO_CARDS);
    until(&host, "works", has(WORKS));
    let first = Instant::now();
    until(&host, "a second run", |_| {
        host.look(Instant::now()).collectors[0].age.is_some_and(|age| age < first.elapsed())
    });
    assert_eq!(stub.opened(), 1, "it stays open from run to run");
    let broken = [
        changed(TWO_CARDS, "count", "count !999"),
        format!("{TWO_CARDS}gpu0.handle 999\ngpu1.handle 999\n"),
        changed(&changed(TWO_CARDS, "gpu0.memory", "gpu0.memory !999"), "gpu1.memory", "gpu1.memory !15"),
    ];
    for script in broken {
        stub.script(&script);
        let look = until(&host, &script, has(FAILS));
        assert!(!text(&look).contains("kvtier_gpu_info"), "no stale values: {}", text(&look));
        assert!(counts(2, 0)(&text(&look)), "{}", text(&look));
        assert!(text(&look).contains("kvtier_collector_age_seconds{collector=\"gpu\"}"));
        stub.script(TWO_CARDS);
        until(&host, "works again", has(WORKS));
    }
    assert!(stub.opened() > 3, "opened anew after each breakdown: {}", stub.opened());
}

#[test]
fn a_call_that_blocks_does_not_hold_up_a_look() {
    let (_root, stub, host) = box_with(&[], TWO_CARDS);
    until(&host, "works", has(WORKS));
    stub.script(&changed(TWO_CARDS, "gpu1.memory", "gpu1.memory block"));
    let deadline = Instant::now() + Duration::from_secs(10);
    while !stub.blocks() {
        assert!(Instant::now() < deadline, "the call does not block");
        thread::sleep(Duration::from_millis(1));
    }
    let begun = Instant::now();
    let looks: Vec<Look> = (0..100).map(|_| host.look(Instant::now())).collect();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(has(WORKS)(&text(&looks[99])), "the last sample is still young");

    let late = host.look(Instant::now() + Duration::from_secs(16));
    assert!(has(FAILS)(&text(&late)) && !text(&late).contains("kvtier_gpu_info"), "{}", text(&late));
    assert!(counts(2, 0)(&text(&late)), "a driver that blocks tells of no GPU: {}", text(&late));
    assert!(late.collectors[0].age > Some(Duration::from_secs(15)));
    assert!(late.collectors[0].failure.as_ref().unwrap().contains("not come back"), "{:?}", late.collectors);

    let unblocked = Instant::now();
    stub.script(TWO_CARDS);
    let younger = |_: &str| host.look(Instant::now()).collectors[0].age < Some(unblocked.elapsed());
    until(&host, "works again", younger);
}

#[test]
fn a_library_that_is_none_is_said_and_does_not_end_the_program() {
    let root = tempfile::tempdir().unwrap();
    let library = Stub::path_in(root.path());
    fs::write(&library, "no ELF file").unwrap();
    let look = until(&start(&options(&library, &root)), "no library", has(FAILS));
    let failure = look.collectors[0].failure.as_ref().unwrap();
    assert!(failure.contains("--nvml.library") && failure.contains("cannot be opened as a library"), "{failure}");
    assert!(!failure.contains("libloading") && !failure.contains("ELF"), "{failure}");
}

/// An opened library is a mapped file. Named like a tier, it shows the real /proc of this very process to the shm
/// collector: no hand-made maps text stands between.
#[test]
fn a_tier_file_that_this_process_really_maps_is_found_in_proc() {
    let root = tempfile::tempdir().unwrap();
    let stub = Stub::build(root.path(), &[], TWO_CARDS);
    let mount = root.path().join("shm");
    fs::create_dir(&mount).unwrap();
    let tier = mount.join("vllm_offload_e1_dp0.mmap");
    fs::copy(stub.library(), &tier).unwrap();
    fs::copy(root.path().join("libnvidia-ml.so.1.script"), mount.join("vllm_offload_e1_dp0.mmap.script")).unwrap();
    let gpu = start(&options(&tier, &root));
    until(&gpu, "the library is open", has(WORKS));

    let options = Options { shm: mount.clone(), collectors: vec!["shm"], ..Options::default() };
    let shm = start(&options);
    let look = until(&shm, "mapped", |text| text.contains(",state=\"mapped\"} 1\n"));
    assert_eq!(look.facts.live_tier_files.len(), 1);
    assert_eq!(look.facts.live_tier_files[0].engine_id, "e1_dp0");
    assert_eq!(look.facts.live_tier_files[0].bytes, fs::metadata(&tier).unwrap().len());
    drop(gpu);
}
