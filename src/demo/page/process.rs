//! The server process itself: Python's families at the top of the page, HTTP's at its end.

use super::sheet::{Labels, Sheet};

const GENERATIONS: [Labels; 3] = [&[("generation", "0")], &[("generation", "1")], &[("generation", "2")]];
const CHAT: &[(&str, &str)] = &[("handler", "/v1/chat/completions")];
const CHAT_OK: Labels = &[("handler", "/v1/chat/completions"), ("method", "POST"), ("status", "2xx")];
/// Bytes of one request and of one answer, on average.
const REQUEST_BYTES: f64 = 96_000.0;
const ANSWER_BYTES: f64 = 2_100.0;

/// Garbage collector, interpreter, process.
pub(super) fn python(sheet: &mut Sheet<'_>) {
    let seconds = sheet.state.seconds();
    let per_generation = |rates: [f64; 3]| {
        let floor = |rate: f64| (rate * seconds).floor();
        [0, 1, 2].map(|index| (GENERATIONS[index], floor(rates[index]) + 100.0)).to_vec()
    };
    let counters = [
        ("python_gc_objects_collected_total", "Objects that the collector freed", per_generation([2.0, 0.4, 0.1])),
        (
            "python_gc_objects_uncollectable_total",
            "Objects that it could not free",
            GENERATIONS.map(|g| (g, 0.0)).to_vec(),
        ),
        ("python_gc_collections_total", "Runs of the collector", per_generation([0.2, 0.02, 0.002])),
    ];
    for (name, help, samples) in counters {
        sheet.head(name, "counter", help);
        samples.iter().for_each(|(labels, value)| sheet.sample(name, labels, *value));
    }
    sheet.head("python_info", "gauge", "Interpreter that a real server would run on");
    let version =
        [("implementation", "CPython"), ("major", "3"), ("minor", "12"), ("patchlevel", "1"), ("version", "3.12.1")];
    sheet.sample("python_info", &version, 1.0);
    let process = [
        ("process_virtual_memory_bytes", "gauge", "Virtual memory", 46_817_894_400.0),
        ("process_resident_memory_bytes", "gauge", "Resident memory", 5_066_518_528.0),
        ("process_start_time_seconds", "gauge", "Unix time of the start", sheet.dates.unix(0.0)),
        ("process_cpu_seconds_total", "counter", "CPU time, user and system", 30.0 + 0.4 * seconds),
        ("process_open_fds", "gauge", "Open file descriptors", 60.0),
        ("process_max_fds", "gauge", "Limit of open file descriptors", 65_535.0),
    ];
    for (name, kind, help, value) in process {
        sheet.head(name, kind, help);
        sheet.sample(name, &[], value);
    }
}

/// Requests over HTTP, all engines together. They appear with the first answer.
pub(super) fn http(sheet: &mut Sheet<'_>) {
    let finished = sheet.state.finished() as f64;
    let samples: &[_] = if finished > 0.0 { &[(CHAT_OK, finished)] } else { &[] };
    sheet.server_counter("http_requests", "Answers by route, method and status", samples);
    summary(sheet, "http_request_size_bytes", "Length of requests, in bytes", finished, REQUEST_BYTES);
    summary(sheet, "http_response_size_bytes", "Length of answers, in bytes", finished, ANSWER_BYTES);
}

fn summary(sheet: &mut Sheet<'_>, name: &str, help: &str, count: f64, mean: f64) {
    sheet.head(name, "summary", help);
    if count > 0.0 {
        sheet.sample(&format!("{name}_count"), CHAT, count);
        sheet.sample(&format!("{name}_sum"), CHAT, count * mean);
        sheet.created(name, help, vec![(CHAT.to_vec(), 0.0)]);
    }
}
