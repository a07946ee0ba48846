//! The rules that keep the repository readable, as tests. Each failure names the file and the rule.

use std::fs;

use xtask::{files, is_rust, root, shown};

/// Layers from the bottom up. A crate may use those before it.
const LAYERS: &[&str] = &["base", "reactor", "flash", "segment", "kv", "node", "redis", "sim", "server"];
/// Lines a source file may have: past this there are two things in one room.
const FILE_LINES_MAX: usize = 800;
/// How the head of a test that is not in its crate's `tests/it` begins the reason.
const ALONE: &str = "Alone in a program of its own";

fn is_shipped(section: &str) -> bool {
    section == "dependencies" || (section.starts_with("target.") && section.ends_with(".dependencies"))
}

fn pumice_dependencies(manifest: &str) -> Vec<String> {
    // Development dependencies may look sideways (tests run on the simulator), never the shipped ones.
    let mut section = String::new();
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_string();
        } else if is_shipped(&section)
            && let Some(rest) = line.strip_prefix("pumice-")
        {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            found.push(rest[..end].to_string());
        }
    }
    found
}

#[test]
fn dependency_arrows_point_down() {
    let mut wrong = Vec::new();
    let manifests = files("crates", |p| p.file_name().is_some_and(|n| n == "Cargo.toml"));
    assert!(manifests.len() > 1, "no crates found under crates/");
    for manifest in manifests {
        let crate_name = manifest.parent().unwrap().file_name().unwrap().to_string_lossy().to_string();
        let Some(level) = LAYERS.iter().position(|l| *l == crate_name) else {
            continue; // test rigs inside crates
        };
        for used in pumice_dependencies(&fs::read_to_string(&manifest).unwrap()) {
            let allowed = LAYERS.iter().position(|l| *l == used).is_some_and(|l| l < level);
            if !allowed {
                wrong
                    .push(format!("{crate_name} uses {used}: a layer uses only those below it ({LAYERS:?})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_crate_is_a_layer_and_named_after_its_folder() {
    for manifest in files("crates", |p| p.file_name().is_some_and(|n| n == "Cargo.toml")) {
        let folder = manifest.parent().unwrap().file_name().unwrap().to_string_lossy().to_string();
        let text = fs::read_to_string(&manifest).unwrap();
        assert!(
            LAYERS.contains(&folder.as_str()),
            "{folder}: not in the stack; add it to LAYERS and ARCHITECTURE"
        );
        assert!(
            text.contains(&format!("name = \"pumice-{folder}\"")),
            "{folder}: package must be pumice-{folder}"
        );
        assert!(text.contains("[lints]\nworkspace = true"), "{folder}: take the workspace's lints");
    }
}

#[test]
fn source_files_stay_small() {
    let long: Vec<String> = files(".", is_rust)
        .iter()
        .map(|path| (shown(path), fs::read_to_string(path).unwrap().lines().count()))
        .filter(|(_, lines)| *lines > FILE_LINES_MAX)
        .map(|(path, lines)| format!("{path}: {lines} lines, more than {FILE_LINES_MAX}"))
        .collect();
    assert!(long.is_empty(), "two things in one room:\n{}", long.join("\n"));
}

/// Where a foreign function has to be called that no crate wraps.
const FOREIGN_FUNCTIONS: [&str; 1] = ["crates/server/src/allocator.rs"];

#[test]
fn unsafe_lives_in_the_reactor_only() {
    let mut wrong = Vec::new();
    for path in files("crates", is_rust) {
        let name = shown(&path);
        if name.starts_with("crates/reactor/") || FOREIGN_FUNCTIONS.contains(&name.as_str()) {
            continue;
        }
        for (at, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let is_unsafe =
                ["unsafe {", "unsafe fn", "unsafe impl", "allow(unsafe_code)", "expect(unsafe_code)"]
                    .iter()
                    .any(|word| code.contains(word));
            if is_unsafe {
                wrong.push(format!("{name}:{}: unsafe belongs into crates/reactor", at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn assertions_stay_on() {
    let mut wrong = Vec::new();
    for path in files("crates", is_rust).iter().filter(|path| !shown(path).starts_with("crates/reactor/")) {
        for (at, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
            if line.trim_start().starts_with("debug_assert") {
                wrong.push(format!(
                    "{}:{}: release builds leave it out: write `assert!`",
                    shown(path),
                    at + 1
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn source_files_say_what_they_are() {
    let mute: Vec<String> = files("crates", is_rust)
        .iter()
        .filter(|path| shown(path).contains("/src/"))
        .filter(|path| !fs::read_to_string(path).unwrap().starts_with("//!"))
        .map(|path| format!("{}: starts without a `//!` that tells what it is and how it works", shown(path)))
        .collect();
    assert!(mute.is_empty(), "{}", mute.join("\n"));
}

/// Whether a doc comment has an example that rustdoc would compile and run.
fn has_doctest(source: &str) -> bool {
    let comments = source.lines().map(str::trim_start);
    let fences = comments.filter_map(|line| line.strip_prefix("///").or(line.strip_prefix("//!")));
    let fences = fences.map(str::trim).filter(|line| line.starts_with("```"));
    fences.step_by(2).any(|opening| opening != "```text")
}

/// Tests in a library or its documentation would not run: the manifests say `test = false`, and `./test` asks for `--tests`. As
/// a test each library would be compiled a second time, and its documentation with it.
#[test]
fn tests_live_beside_the_code_not_in_it() {
    let mut wrong = Vec::new();
    for path in files("crates", is_rust).iter().filter(|path| shown(path).contains("/src/")) {
        let source = fs::read_to_string(path).unwrap();
        let is_test = |line: &str| line.starts_with("#[cfg(test)]") || line.starts_with("#[test]");
        if source.lines().any(|line| is_test(line.trim_start())) || has_doctest(&source) {
            wrong.push(format!("{}: move its tests to the crate's tests/", shown(path)));
        }
    }
    for path in files("crates", |p| p.file_name().is_some_and(|n| n == "Cargo.toml")) {
        if !fs::read_to_string(&path).unwrap().lines().any(|line| line == "test = false") {
            wrong.push(format!("{}: its library has no tests: `test = false`", shown(&path)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file that nobody declares is not compiled, and nobody hears of it.
#[test]
fn every_file_of_tests_belongs_to_a_program() {
    let mut wrong = Vec::new();
    for main in files("crates", |p| p.ends_with("tests/it/main.rs")) {
        let (it, declared) = (main.parent().unwrap(), fs::read_to_string(&main).unwrap());
        for path in files(&shown(it), is_rust) {
            let inside = path.strip_prefix(it).unwrap();
            let module = inside.iter().next().unwrap().to_string_lossy();
            let module = module.trim_end_matches(".rs");
            if module != "main" && !declared.lines().any(|line| line == format!("mod {module};")) {
                wrong.push(format!("{}: main.rs does not say `mod {module};`", shown(&path)));
            }
        }
        for path in files(&shown(it.parent().unwrap()), is_rust) {
            let is_program = path.parent() == it.parent();
            if is_program && !fs::read_to_string(&path).unwrap().contains(ALONE) {
                wrong.push(format!(
                    "{}: belongs into it/, or its head says why not ({ALONE:?})",
                    shown(&path)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a path or address of one machine looks like; spelt in two halves so that this file passes.
fn machine_words() -> Vec<String> {
    [
        ("/tmp/", "wt"),
        ("/wo", "rk/main"),
        ("/wo", "rk/shared"),
        ("/ro", "ot/."),
        ("/home/", "ubuntu"),
        ("/tmp/", "target-"),
    ]
    .iter()
    .map(|(a, b)| format!("{a}{b}"))
    .collect()
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    let text = |path: &std::path::Path| {
        let kinds =
            ["rs", "toml", "md", "sh", "py", "go", "java", "yml", "yaml", "service", "xml", "json", "txt"];
        let bare = ["run", "test", "Dockerfile"];
        path.extension().map_or_else(
            || path.file_name().is_some_and(|n| bare.contains(&n.to_string_lossy().as_ref())),
            |e| kinds.contains(&e.to_string_lossy().as_ref()),
        )
    };
    let words = machine_words();
    let mut wrong = Vec::new();
    for path in files(".", text) {
        let Ok(content) = fs::read_to_string(&path) else { continue };
        for (at, line) in content.lines().enumerate() {
            for word in words.iter().filter(|word| line.contains(word.as_str())) {
                wrong.push(format!("{}:{}: names {word}", shown(&path), at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The text of a magic number declared on `line`: `const MAGIC: … = …b"TEXT"…`.
fn magic_text(line: &str) -> Option<&str> {
    let is_declared =
        line.contains("const ") && line.contains("MAGIC") && !line.trim_start().starts_with("//");
    let (_, rest) = line.split_once("b\"").filter(|_| is_declared)?;
    rest.split_once('"').map(|(text, _)| text)
}

#[test]
fn every_stored_format_has_its_page() {
    let pages: Vec<String> = files("docs/format", |p| p.extension().is_some_and(|e| e == "md"))
        .iter()
        .map(|p| fs::read_to_string(p).unwrap())
        .collect();
    let mut wrong = Vec::new();
    for path in files("crates", is_rust) {
        let content = fs::read_to_string(&path).unwrap();
        for magic in content.lines().filter_map(magic_text) {
            if !pages.iter().any(|page| page.contains(magic)) {
                wrong.push(format!(
                    "{}: no page of docs/format/ describes what begins with {magic}",
                    shown(&path)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_front_pages_are_there() {
    for page in [
        "README.md",
        "ARCHITECTURE.md",
        "STYLE.md",
        "CHANGELOG.md",
        "LICENSE",
        "deny.toml",
        "run",
        "test",
        ".ci/run",
        "packaging/Dockerfile",
        "packaging/pumice.service",
        "packaging/pumice.toml",
    ] {
        assert!(root().join(page).exists(), "{page} is missing");
    }
}

/// Words of a page that are written as code and end as a file's name does.
fn named_files(page: &str) -> Vec<&str> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let spans = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let words = spans.flat_map(|span| span.split(move |c| !is_path(c)));
    words
        .filter(|word| {
            [".rs", ".md", ".toml"].iter().any(|end| word.ends_with(end) && word.len() > end.len())
        })
        .collect()
}

/// From the root, so that whoever reads can open them; a page may name those beside it without their folder.
#[test]
fn files_that_pages_name_are_there() {
    let mut wrong = Vec::new();
    let is_page = |path: &std::path::Path| path.extension().is_some_and(|end| end == "md");
    let pages = ["ARCHITECTURE.md", "STYLE.md", "README.md", "CHANGELOG.md"].map(|page| root().join(page));
    for page in pages.into_iter().chain(files("docs", is_page)) {
        let text = fs::read_to_string(&page).unwrap();
        let beside = page.parent().expect("a page has a folder");
        for file in named_files(&text) {
            let is_beside = file.ends_with(".md") && beside.join(file).exists();
            if !is_beside && !root().join(file).exists() {
                wrong.push(format!("{}: there is no `{file}`: name files from the root", shown(&page)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
