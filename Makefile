# The verbs. CMake is the build; this file only names what people do.
.PHONY: all build deps demo test check bench asan tsan fuzz selftest install clean
BUILD := build/release
JOBS  := $(shell nproc)
FUZZ_SECONDS ?= 30
# Quiet unless it fails.
configure = mkdir -p build && cmake --preset $(1) -DLT_WERROR=$(or $(WERROR),OFF) > build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }

all: build

deps: ## installs Debian packages when something is missing and this is root
	@tools/deps.sh

build: deps
	@$(call configure,release)
	@cmake --build $(BUILD) -j $(JOBS)

demo: deps ## fetches a small real model and runs it in a quarter of its size
	@$(call configure,release)
	@cmake --build $(BUILD) -j $(JOBS) --target lowtide
	@tools/demo.sh $(BUILD)/lowtide

test: build check ## every test; real models are fetched when they can be
	@tools/test.sh $(BUILD)

check: ## arrows between folders, sizes of files and functions, machine names
	@python3 tools/check.py

bench: build
	@bench/run.sh $(BUILD)

asan: deps
	@$(call configure,asan-ubsan)
	@cmake --build build/asan-ubsan -j $(JOBS)
	@tools/sanitize.sh build/asan-ubsan

tsan: deps
	@$(call configure,tsan)
	@cmake --build build/tsan -j $(JOBS)
	@tools/sanitize.sh build/tsan

fuzz: ## every target for FUZZ_SECONDS
	@tools/deps.sh clang
	@$(call configure,fuzz)
	@cmake --build build/fuzz -j $(JOBS)
	@tools/fuzz.sh build/fuzz $(FUZZ_SECONDS) '$(or $(FUZZ_TARGET),fuzz_*)'

selftest: ## plants bugs, expects the scripts above to turn red, on the builds that exist
	@tools/selftest.sh

install: build
	@cmake --install $(BUILD)

clean:
	@rm -rf build
