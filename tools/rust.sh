# Sourced by ./run and ./test: finds cargo, or installs it (rust-toolchain.toml names the version).

# A cargo that builds this: rustup's fetches what rust-toolchain.toml names, any other must be as new as that.
has_cargo() {
    command -v cargo >/dev/null 2>&1 || return 1
    case $(command -v cargo) in "$HOME/.cargo/bin/cargo") return 0 ;; esac
    command -v rustup >/dev/null 2>&1 && return 0
    found=$(cargo --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n' "$channel" "$found" | sort -V | head -n 1)" = "$channel" ]
}

need_cargo() {
    channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
    has_cargo && return 0
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        PATH="$HOME/.cargo/bin:$PATH"
        export PATH
        return 0
    fi
    echo "Rust $channel is missing; installing it." >&2
    sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo"
    if command -v apt-get >/dev/null 2>&1; then
        $sudo apt-get update -q >&2 || true
        # A linker and curl for rustup; Debian 13 and Ubuntu 24.04 package rustup itself, which does not go with an older cargo.
        $sudo apt-get install -qy --no-install-recommends gcc libc6-dev curl ca-certificates >&2
        command -v cargo >/dev/null 2>&1 ||
            $sudo apt-get install -qy --no-install-recommends rustup >&2 2>/dev/null || true
    fi
    if command -v rustup >/dev/null 2>&1; then
        # Those before 1.28 want to be told the version.
        rustup toolchain install "$channel" --profile minimal --component rustfmt --component clippy >&2
    else
        # Beside a cargo that is too old, if there is one.
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
            RUSTUP_INIT_SKIP_PATH_CHECK=yes sh -s -- -y --profile minimal --default-toolchain "$channel" >&2
    fi
    PATH="$HOME/.cargo/bin:$PATH"
    export PATH
    command -v cargo >/dev/null 2>&1 || {
        echo "Could not install Rust. See https://rustup.rs, then run this again." >&2
        exit 2
    }
}
