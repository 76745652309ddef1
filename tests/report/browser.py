"""Open a page in Chromium without a window: python browser.py PAGE OUTPUT WIDTH light|dark

Prints one JSON object: console messages, what the page asked for, its height and whether it is wider than the window.
QtWebEngine is Chromium with Qt around it, and comes as a wheel: pip install PyQt6-WebEngine.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

HEIGHT = 900

# What sticks out of the window, save inside of something that scrolls by itself.
WIDEST = """
[...document.querySelectorAll("body *")]
  .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1 && !(e.parentElement.closest(".wide, pre")))
  .map(e => e.tagName + "." + e.getAttribute("class") + " " + Math.round(e.getBoundingClientRect().right)).slice(0, 5)
"""


def main(page: Path, output: Path, width: int, theme: str) -> None:
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    os.environ["QTWEBENGINE_DISABLE_SANDBOX"] = "1"
    # Blink's own numbers: 0 is dark, 1 is light.
    scheme = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
    os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = f"--disable-gpu --single-process --hide-scrollbars {scheme}"
    from PyQt6.QtCore import QEventLoop, QTimer, QUrl
    from PyQt6.QtGui import QImage, QPainter
    from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineUrlRequestInterceptor
    from PyQt6.QtWebEngineWidgets import QWebEngineView
    from PyQt6.QtWidgets import QApplication

    application = QApplication([sys.argv[0]])  # noqa: F841  (it lives as long as its name)
    requests: list[str] = []
    messages: list[str] = []

    class Interceptor(QWebEngineUrlRequestInterceptor):
        def interceptRequest(self, info):  # noqa: N802  (Qt's name)
            requests.append(info.requestUrl().toString()[:200])

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level, message, line, source):  # noqa: N802
            messages.append(message)

    view = QWebEngineView()
    own = Page(view)
    interceptor = Interceptor()
    own.setUrlRequestInterceptor(interceptor)
    view.setPage(own)
    view.resize(width, HEIGHT)
    view.show()

    def wait(milliseconds: int) -> None:
        loop = QEventLoop()
        QTimer.singleShot(milliseconds, loop.quit)
        loop.exec()

    def ask(code: str):
        loop, answer = QEventLoop(), []
        own.runJavaScript(code, lambda value: (answer.append(value), loop.quit()))
        QTimer.singleShot(20_000, loop.quit)
        loop.exec()
        return answer[0] if answer else None

    loop, loaded = QEventLoop(), []
    own.loadFinished.connect(lambda fine: (loaded.append(fine), loop.quit()))
    QTimer.singleShot(60_000, loop.quit)
    own.load(QUrl.fromLocalFile(str(page.resolve())))
    loop.exec()
    height = int(ask("document.documentElement.scrollHeight") or 0)
    overflow = int(ask("document.documentElement.scrollWidth - document.documentElement.clientWidth") or 0)
    widest = ask(WIDEST)
    background = ask("getComputedStyle(document.body).backgroundColor")
    picture = QImage(width, height, QImage.Format.Format_RGB32)
    painter = QPainter(picture)
    for top in range(0, height, HEIGHT):
        ask(f"window.scrollTo(0, {top}); window.scrollY")
        wait(250)
        painter.drawPixmap(0, int(ask("window.scrollY") or 0), view.grab())
    painter.end()
    picture.save(str(output))
    found = {
        "loaded": loaded == [True],
        "messages": messages,
        "requests": requests,
        "height": height,
        "overflow": overflow,
        "widest": widest,
        "background": background,
    }
    print(json.dumps(found), flush=True)
    os._exit(0)  # Chromium's threads take their time, and there is nothing left to save


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
