"""The local app: play, look inside an agent, watch runs. It needs the extra ``app`` for its pages.

- ``worlds``, ``minds``, ``lanes``: one game, whoever plays it, every step of which can be returned to.
- ``sessions``: the games of one page, and the clock that steps them.
- ``server``, ``guard``, ``pages``: what the browser talks to; ``static`` is what it shows.
- ``watching``: runs that are training, read from their files.
- ``replays``, ``human_log``: what is written.
- ``terminal``: the same game without a browser.
"""
