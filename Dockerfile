# Weft on any system that runs containers:
#
#   docker build -t weft . && docker run weft train
#
# The image has the program, the library and its headers, and a compiler for programs on the shared one.
FROM debian:12 AS build
COPY . /weft
RUN WEFT_BUILD_CACHE=no /weft/weft install --prefix /opt/weft

FROM debian:12
RUN apt-get update && \
    apt-get install -y --no-install-recommends cmake g++ libdnnl2 libfmt-dev libhwy-dev libjpeg62-turbo libpng16-16 \
      libyaml-cpp0.7 make nlohmann-json3-dev openmpi-bin pkg-config zlib1g && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/weft /usr/local
RUN ldconfig
# As ./weft does: idle OpenMP threads give up their core.
ENV GOMP_SPINCOUNT=1000
WORKDIR /work
ENTRYPOINT ["weft"]
CMD ["--help"]
