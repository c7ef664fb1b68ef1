/** The frame of all pages. */
import { render } from 'preact'
import { App } from './shell/App'
import { applyTheme } from './shell/theme'

applyTheme()
render(<App />, document.getElementById('app')!)
