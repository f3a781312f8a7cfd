# coseek with all that `make env` installs.
#
#     docker build -t coseek .
#     docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" coseek quickstart --out runs/quickstart
FROM python:3.12-bookworm
COPY . /coseek
WORKDIR /coseek
RUN make env
# A user of the host may be unknown here and have no home.
ENV HOME=/tmp PATH=/coseek/.venv/bin:$PATH
WORKDIR /data
USER 1000:1000
ENTRYPOINT ["coseek"]
